package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// hookStatusTimeout limits how long `hook status` waits for the mesh.
const hookStatusTimeout = 20 * time.Second

// allHookStatus prints the state of all clients' hooks. It returns errSilent if a registered hook does not work, or if
// no hook is registered.
func (t *tool) allHookStatus(ctx context.Context) error {
	working, failed := 0, false
	for _, id := range hosttools.Clients() {
		h, err := t.hookTarget(id, "")
		if err != nil {
			return err
		}
		commands, err := h.Registered()
		if err == nil && !slices.ContainsFunc(commands, func(c string) bool { return c != "" }) {
			h.printf("%s: the hook is not registered.", h.client.Name)
			continue
		}
		switch err := h.status(ctx); {
		case errors.Is(err, errSilent):
			failed = true
		case err != nil:
			failed = true
			h.printf("%s: %v", h.client.Name, err)
		default:
			working++
		}
	}
	if failed || working == 0 {
		return errSilent
	}
	return nil
}

// meshFaults returns the reasons why the hook gets no response from the mesh. Like the hook, it starts the mesh if
// necessary.
func (h *hookTarget) meshFaults(ctx context.Context) []string {
	denied := func(err error) []string { return []string{fmt.Sprintf("all calls are denied: %v", err)} }
	token, err := os.ReadFile(h.paths.Token(h.client.ID))
	if err != nil {
		return denied(fmt.Errorf("the client has no token for your mesh: run %s (%w)", h.command("hook install "+h.client.ID), err))
	}
	own, err := h.namedMesh(h.paths.Config, h.paths.Data)
	if err != nil {
		return denied(err)
	}
	ctx, cancel := context.WithTimeout(ctx, hookStatusTimeout)
	defer cancel()
	mesh, err := own.find(ctx, true)
	if err != nil {
		return denied(err)
	}
	// The mesh neither evaluates nor records this test event.
	question := []byte(`{"event":"permission","tool":"hook status","input":{}}`)
	verdict, err := postHook(ctx, "http://"+mesh.MCP+"/hook/"+h.client.ID, strings.TrimSpace(string(token)), question)
	if err != nil {
		return denied(err)
	}
	if verdict.Verdict != "pass" {
		return denied(errors.New(verdict.Reason))
	}
	return nil
}

// settingsFaults returns a message for each setting that prevents the client from running hooks. It reads the settings
// of the user, the administrator and projects. It looks for projects in the project directory, or in the working
// directory if no project is set, and in all its parents.
func (h *hookTarget) settingsFaults() (out []string) {
	for _, path := range h.settingsFiles() {
		raw, err := clientsetup.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		faults := []string{}
		if err == nil {
			faults, err = h.disabled(path, raw)
		}
		if err != nil {
			faults = []string{fmt.Sprintf("the file can't be read: %v", err)}
		}
		for _, fault := range faults {
			out = append(out, fmt.Sprintf("%s: %s", h.shownPath(path), fault))
		}
	}
	return out
}

// settingsFiles returns the files that can disable the client's hooks.
func (h *hookTarget) settingsFiles() []string {
	out := []string{h.Path}
	var project []string
	switch h.client.ID {
	case "claude-code":
		project = []string{".claude/settings.json", ".claude/settings.local.json"}
		out = append(out, managedSettings["claude-code/"+runtime.GOOS])
	case "gemini":
		project = []string{".gemini/settings.json"}
		out = append(out, managedSettings["gemini/"+runtime.GOOS])
	case hosttools.Codex:
		project = []string{".codex/config.toml"}
		out = append(out, filepath.Join(filepath.Dir(h.Path), "config.toml"))
	}
	for _, dir := range parents(h.Project) {
		for _, name := range project {
			out = append(out, filepath.Join(dir, filepath.FromSlash(name)))
		}
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(path string) bool { return path == "" })
}

// managedSettings contains the paths of administrators' settings, by CLIENT/OS.
var managedSettings = map[string]string{
	"claude-code/linux":   "/etc/claude-code/managed-settings.json",
	"claude-code/darwin":  "/Library/Application Support/ClaudeCode/managed-settings.json",
	"claude-code/windows": `C:\Program Files\ClaudeCode\managed-settings.json`,
	"gemini/linux":        "/etc/gemini-cli/settings.json",
	"gemini/darwin":       "/Library/Application Support/GeminiCli/settings.json",
	"gemini/windows":      `C:\ProgramData\gemini-cli\settings.json`,
}

// disabled returns a message for each setting in a file that prevents the client from running hooks.
func (h *hookTarget) disabled(path string, raw []byte) (out []string, err error) {
	layout := configedit.Layout{Format: configedit.JSON}
	if filepath.Ext(path) == ".toml" {
		layout.Format = configedit.TOML
	}
	root, err := configedit.Parse(layout, raw)
	if err != nil {
		return nil, err
	}
	check := func(value string, path ...string) {
		if n := root.Get(path...); n != nil && n.Kind == configedit.Bool && n.Text == value {
			out = append(out, fmt.Sprintf("calls pass without the mesh, because %s is %s", strings.Join(path, "."), value))
		}
	}
	switch h.client.ID {
	case "claude-code":
		check("true", "disableAllHooks")
		check("true", "allowManagedHooksOnly")
	case "gemini":
		check("false", "hooksConfig", "enabled")
		if list := root.Get("hooksConfig", "disabled"); list != nil {
			for _, item := range list.Items {
				if item.Text == "sluice" || strings.HasSuffix(item.Text, " hook gemini") || strings.Contains(item.Text, " hook gemini ") {
					out = append(out, "calls pass without the mesh, because hooksConfig.disabled contains "+item.Text)
				}
			}
		}
	case hosttools.Codex:
		check("false", "features", "hooks")
		check("false", "features", "codex_hooks") // the name in earlier versions
	}
	return out, nil
}
