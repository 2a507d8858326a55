// Package hooksetup registers Sluice's hook in the settings of MCP clients. It can also remove the hook and restore
// exactly the earlier bytes of the settings.
package hooksetup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/sluice/internal/atomicfile"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
	"github.com/sluice-mesh/sluice/services/sluice/internal/regularfile"
)

const (
	// Timeout is the time after which a client stops the hook. It is longer than [Hold], so that the hook can deny a call
	// before the client runs it.
	Timeout = 300 * time.Second
	// Hold limits how long a call waits for people.
	Hold = 240 * time.Second
)

// settle is the time that Sluice waits after it has changed a file. It then reads the file again, to detect whether the
// client has overwritten the change.
var settle = 2 * time.Second

// A Target is the settings file of a client in which the hook is registered.
type Target struct {
	Client string
	Path   string
	// Project is the directory of the project. It is empty for the settings of the user.
	Project string
	// Config is the absolute path of the configuration of the person's mesh. The hook always uses this mesh, whatever the
	// client's environment contains.
	Config string
}

// TargetOf returns the settings file of a client. If project is not empty, it returns the settings file in this project
// that is private to the user, and not the file that the project shares.
func TargetOf(client clientconfig.Client, sys clientconfig.System, project string) (Target, error) {
	t := Target{Client: client.ID, Project: project}
	user := client.Files(sys, "")[0].Path
	if project != "" {
		if client.ID != "claude-code" {
			return t, fmt.Errorf("%s has no settings for a project that belong to you alone, and in a shared file the hook would be missing on other machines, where the client then runs every call: leave out --project", client.Name)
		}
		t.Path = filepath.Join(project, ".claude", "settings.local.json")
		return t, nil
	}
	switch client.ID {
	case "claude-code":
		t.Path = filepath.Join(sys.Home, ".claude", "settings.json")
		if dir := sys.Getenv("CLAUDE_CONFIG_DIR"); filepath.IsAbs(dir) {
			t.Path = filepath.Join(dir, "settings.json")
		}
	case "codex":
		t.Path = filepath.Join(filepath.Dir(user), "hooks.json")
	case "gemini":
		t.Path = user
	default:
		return t, fmt.Errorf("%s has no hooks that Sluice knows", client.Name)
	}
	return t, nil
}

// Events returns the names of the events for which the hook is registered.
func (t Target) Events() []string {
	switch t.Client {
	case "codex":
		return []string{"PreToolUse", "PermissionRequest"}
	case "gemini":
		return []string{"BeforeTool"}
	default: // the second event occurs for commands in skills, which are not tool calls
		return []string{"PreToolUse", "PreSkillShellCommand"}
	}
}

// item returns the item that registers the hook in the list for an event. Clients run the command in a shell.
func (t Target) item(command string) configedit.Object {
	seconds := int(Timeout / time.Second)
	hook := configedit.Object{{Name: "type", Value: "command"}, {Name: "command", Value: command}}
	switch t.Client {
	case "gemini":
		hook = append(configedit.Object{{Name: "name", Value: "sluice"}}, append(hook, configedit.Field{Name: "timeout", Value: seconds * 1000})...)
	case "claude-code":
		hook = append(hook, configedit.Field{Name: "timeout", Value: seconds}, configedit.Field{Name: "onFailure", Value: "block"})
	default:
		hook = append(hook, configedit.Field{Name: "timeout", Value: seconds})
	}
	list := &configedit.Node{Kind: configedit.List, Items: []*configedit.Node{nodeOf(hook)}}
	return configedit.Object{{Name: "hooks", Value: list}}
}

// Command returns the command line that starts the hook.
func (t Target) Command(data, program string) string {
	return quoted(program) + " hook " + t.Client + " --config " + quoted(t.Config) + " --data " + quoted(data)
}

// nodeOf converts an object whose values are strings, integers and nodes.
func nodeOf(o configedit.Object) *configedit.Node {
	n := &configedit.Node{Kind: configedit.Map}
	for _, f := range o {
		value := &configedit.Node{Kind: configedit.String}
		switch v := f.Value.(type) {
		case string:
			value.Text = v
		case int:
			value.Kind, value.Text = configedit.Number, fmt.Sprint(v)
		case *configedit.Node:
			value = v
		}
		n.Members = append(n.Members, configedit.Member{Name: f.Name, Value: value})
	}
	return n
}

// quoted returns a path as a single shell word.
func quoted(path string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(`/._-+:\`, r)
	}
	switch {
	case strings.IndexFunc(path, func(r rune) bool { return !plain(r) }) < 0 && !strings.Contains(path, `\`):
		return path
	case strings.Contains(path, `\`): // a path on Windows
		return `"` + path + `"`
	default:
		return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
	}
}

// isOurs reports whether an item in a list of hooks contains only Sluice's hook.
func (t Target) isOurs(n *configedit.Node) bool {
	hooks := n.Get("hooks")
	if hooks == nil || hooks.Kind != configedit.List || len(hooks.Items) != 1 {
		return false
	}
	command := hooks.Items[0].Get("command")
	return command != nil && IsHook(command.Text, t.Client)
}

// IsHook reports whether a command starts Sluice's hook for a client.
func IsHook(command, client string) bool {
	program, flags, ok := strings.Cut(strings.TrimSpace(command), " hook "+client)
	ok = ok && (flags == "" || strings.HasPrefix(flags, " --config "))
	program = strings.Trim(program, `"'`)
	program = program[strings.LastIndexAny(program, `/\`)+1:]
	return ok && strings.HasPrefix(strings.ToLower(program), "sluice")
}

// hooksKey is the name of the object that contains the lists of all events.
const hooksKey = "hooks"

func path(event string) []string { return []string{hooksKey, event} }

// Registered returns the command of the hook in a settings file for each event, or "" if the hook is not registered for
// the event.
func (t Target) Registered() ([]string, error) {
	items, err := t.items()
	if err != nil {
		return nil, err
	}
	out := make([]string, len(items))
	for i, item := range items {
		if item != nil {
			out[i] = commandOf(item)
		}
	}
	return out, nil
}

// items returns the item with the hook for each event, or nil if the hook is not registered for the event. If an event
// has several such items, items returns the first one that equals what Install writes, apart from the command. If no
// item does, items returns the last one.
func (t Target) items() ([]*configedit.Node, error) {
	out := make([]*configedit.Node, len(t.Events()))
	raw, err := regularfile.Read(t.Path, configedit.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the settings of the client: %w", err)
	}
	root, err := configedit.Parse(configedit.Layout{Format: configedit.JSON}, raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.Path, err)
	}
	for i, event := range t.Events() {
		list := root.Get(path(event)...)
		if list == nil {
			continue
		}
		for _, item := range list.Items {
			if t.isOurs(item) && (out[i] == nil || len(t.faultsOf(out[i])) > 0) {
				out[i] = item
			}
		}
	}
	return out, nil
}

func (t Target) writer(data string) *atomicfile.Writer {
	return &atomicfile.Writer{Lock: filepath.Join(data, "hooks", "lock"), Settle: settle, Within: t.Project}
}

// Preview returns the content of the settings file before and after Install. The two are equal if the hook is already
// registered.
func (t Target) Preview(data, program string) (before, after []byte, err error) {
	before, err = regularfile.Read(t.Path, configedit.MaxBytes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("read the settings of the client: %w", err)
	}
	after, err = t.add(before, t.Command(data, program), &Record{})
	return before, after, err
}

// Install registers the hook. It reports whether it has changed the settings. It changes nothing if the hook is already
// registered. Hooks of other programs stay.
func (t Target) Install(ctx context.Context, data, program string) (changed bool, err error) {
	before, err := regularfile.Read(t.Path, configedit.MaxBytes)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return false, fmt.Errorf("read the settings of the client: %w", err)
	}
	old, err := t.record(data)
	if err != nil {
		return false, err
	}
	record := Record{Client: t.Client, Path: t.Path, Project: t.Project, Missing: missing, Before: digest(before)}
	if !missing && record.Before == old.After { // otherwise the file also has content from other programs
		record.Missing, record.Before = old.Missing, old.Before
	}
	after, err := t.add(before, t.Command(data, program), &record)
	if err != nil || len(record.Steps) == 0 {
		return false, err
	}
	record.keep(old.Steps)
	record.After = digest(after)
	raw, err := json.Marshal(record)
	if err != nil {
		return false, err
	}
	if err := pki.WriteFile(t.recordPath(data), raw, 0o600); err != nil {
		return false, fmt.Errorf("record the change: %w", err)
	}
	if missing {
		if err := os.MkdirAll(filepath.Dir(t.Path), 0o700); err != nil {
			return false, err
		}
		err = t.writer(data).Create(ctx, t.Path, after)
	} else {
		err = t.writer(data).Replace(ctx, t.Path, before, after)
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", t.Path, err)
	}
	return true, nil
}

// add returns the settings with the hook added. If an item contains the hook with a different command, add replaces
// this item.
func (t Target) add(before []byte, command string, record *Record) ([]byte, error) {
	want := t.item(command)
	data := before
	for _, event := range t.Events() {
		l := configedit.Layout{Format: configedit.JSON}
		root, err := configedit.Parse(l, data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.Path, err)
		}
		list := root.Get(path(event)...)
		if list != nil && slices.ContainsFunc(list.Items, func(n *configedit.Node) bool { return t.isOurs(n) && len(differences(n, nodeOf(want))) == 0 }) {
			continue
		}
		if data, _, err = configedit.RemoveItems(data, path(event), t.isOurs); err != nil {
			return nil, fmt.Errorf("%s: %w", t.Path, err)
		}
		after, created, err := configedit.AddItem(data, path(event), want)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.Path, err)
		}
		data = after
		record.Steps = append(record.Steps, Step{Event: event, Created: created, Parent: root.Get(hooksKey) == nil})
	}
	return data, nil
}

// A Removal is the result of Remove.
type Removal struct {
	// Found is false if the hook was not registered.
	Found bool
	// Exact is true if the file has exactly the same bytes as before Install. Deleted is true if Remove has deleted the
	// file, because Install created it and nothing else has changed it.
	Exact, Deleted bool
}

// Remove undoes the changes by Install. If the file was changed after Install, Remove removes only the items that
// Sluice added.
func (t Target) Remove(ctx context.Context, data string) (Removal, error) {
	now, err := regularfile.Read(t.Path, configedit.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return Removal{}, t.forget(data)
	}
	if err != nil {
		return Removal{}, fmt.Errorf("read the settings of the client: %w", err)
	}
	record, err := t.record(data)
	if err != nil {
		return Removal{}, err
	}
	after, err := t.without(now, record)
	if err != nil {
		return Removal{}, fmt.Errorf("%s: %w", t.Path, err)
	}
	if record.Missing && digest(now) == record.After && isEmpty(after) {
		if err := t.writer(data).Remove(ctx, t.Path, now); err != nil {
			return Removal{}, fmt.Errorf("%s: %w", t.Path, err)
		}
		return Removal{Found: true, Deleted: true}, t.forget(data)
	}
	if string(after) == string(now) {
		return Removal{}, t.forget(data)
	}
	if err := t.writer(data).Replace(ctx, t.Path, now, after); err != nil {
		return Removal{}, fmt.Errorf("%s: %w", t.Path, err)
	}
	return Removal{Found: true, Exact: digest(after) == record.Before}, t.forget(data)
}

// isEmpty reports whether the settings have no members. This check is necessary because a record from an earlier
// version can say that a file was missing even if other programs have added content to it.
func isEmpty(settings []byte) bool {
	root, err := configedit.Parse(configedit.Layout{Format: configedit.JSON}, settings)
	return err == nil && (root == nil || root.Kind == configedit.Map && len(root.Members) == 0)
}

// without returns the settings without the hook.
func (t Target) without(now []byte, record Record) ([]byte, error) {
	data := now
	for _, step := range slices.Backward(record.Steps) {
		if step.Created == nil || digest(data) != step.Created.After {
			continue
		}
		undone, err := step.Created.Undo(data)
		if err != nil {
			return nil, err
		}
		data = undone.Data
	}
	for _, event := range t.Events() {
		var err error
		if data, _, err = configedit.RemoveItems(data, path(event), t.isOurs); err != nil {
			return nil, err
		}
	}
	return t.pruned(data, record)
}

// pruned removes lists that Install has created, and the object that contains them, if they are empty.
func (t Target) pruned(data []byte, record Record) (_ []byte, err error) {
	parent := false
	for _, step := range record.Steps {
		parent = parent || step.Parent
		if step.Created == nil {
			continue
		}
		hasNone := func(list *configedit.Node) bool { return len(list.Items) == 0 }
		if data, err = withoutEmpty(data, hasNone, path(step.Event)...); err != nil {
			return nil, err
		}
	}
	if !parent {
		return data, nil
	}
	return withoutEmpty(data, func(hooks *configedit.Node) bool { return hooks.Kind == configedit.Map && len(hooks.Members) == 0 }, hooksKey)
}

// withoutEmpty removes the value at path from the settings if isEmpty returns true for the value.
func withoutEmpty(data []byte, isEmpty func(*configedit.Node) bool, path ...string) ([]byte, error) {
	l := configedit.Layout{Format: configedit.JSON}
	root, err := configedit.Parse(l, data)
	if err != nil {
		return nil, err
	}
	value := root.Get(path...)
	if value == nil || !isEmpty(value) {
		return data, nil
	}
	change, err := configedit.Apply(l, data, configedit.Edit{Path: path})
	if err != nil {
		return nil, err
	}
	return change.After, nil
}
