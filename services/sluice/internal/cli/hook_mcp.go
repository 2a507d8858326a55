package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/hookevent"
)

// answerMCP returns the output for a call to a tool of an MCP server. If the client reaches the server only through the
// mesh, the hook leaves the decision to the client's own rules, because the mesh evaluates the call later. Otherwise
// the hook denies the call.
func (t *tool) answerMCP(e hookevent.Event) hookevent.Output {
	if e.BroughtByClient() {
		return e.Denied(fmt.Sprintf("Denied by Sluice: the MCP server of the tool %s belongs to a plugin, an account or the client itself, so its calls can't go through the mesh. A person can add the server to the client's own configuration, under another name, and then run %s.", e.Tool, t.command("init "+e.Client)))
	}
	entries, err := t.entriesOf(e)
	if err != nil {
		return e.Failed(err.Error())
	}
	for _, entry := range entries {
		switch {
		case entry.Fault != "":
			return e.Denied(fmt.Sprintf("Denied by Sluice: the entry %q of the tool %s is not behind the mesh, because it %s.", entry.Name, e.Tool, entry.Fault))
		case !entry.Wrapped:
			return e.Denied(fmt.Sprintf("Denied by Sluice: the client reaches the MCP server of the tool %s without the mesh. A person can put it behind the mesh with %s.", e.Tool, t.initCommandFor(e.Client, entry)))
		}
	}
	if len(entries) == 0 || !startsOne(e, entries) {
		return e.Denied(fmt.Sprintf("Denied by Sluice: the MCP server of the tool %s is not in the files that Sluice can read, for example because a plugin or an account brings it. A person can add it to the client's own configuration and then run %s.", e.Tool, t.command("init "+e.Client)))
	}
	return e.Passed()
}

// initCommandFor returns the command that makes an entry in a client's file start its server through the mesh.
func (t *tool) initCommandFor(client string, entry clientconfig.Entry) string {
	if entry.Scope == clientconfig.Project {
		return t.command("init " + client + " --project " + shellWords(entry.Project))
	}
	return t.command("init " + client)
}

// entriesOf returns the enabled entries to which an event's tool may belong. Like clients, it reads the user's files
// and project files. It looks for projects in the working directory, in CLAUDE_PROJECT_DIR, and in all parents of both.
func (t *tool) entriesOf(e hookevent.Event) ([]clientconfig.Entry, error) {
	client, ok := clientconfig.Find(e.Client)
	if !ok {
		return nil, fmt.Errorf("find the files of the client: %q is not known", e.Client)
	}
	sys, err := t.hookSystem()
	if err != nil {
		return nil, err
	}
	behind := t.behindHook()
	dirs := parents(e.Dir)
	if project := getenv("CLAUDE_PROJECT_DIR"); filepath.IsAbs(project) {
		dirs = append(dirs, parents(project)...)
	}
	var out []clientconfig.Entry
	for i, dir := range dirs {
		for _, f := range client.Files(sys, dir) {
			again := i > 0                       // the user's files are the same for all directories
			if f.Scope == clientconfig.Project { // in the home directory, a file can be the user's file
				again = slices.ContainsFunc(client.Files(sys, ""), func(o clientconfig.File) bool { return o.Path == f.Path })
			}
			if f.Pattern || again {
				continue
			}
			entries, err := readEntries(f)
			if err != nil {
				return nil, err
			}
			entries = slices.DeleteFunc(entries, func(entry clientconfig.Entry) bool {
				elsewhere := entry.Scope == clientconfig.Local && !slices.Contains(dirs, filepath.Clean(entry.Project))
				return entry.Disabled || elsewhere || !e.Belongs(entry.Name)
			})
			behind.Check(f, entries)
			if entries, err = readByClient(sys, f, entries); err != nil {
				return nil, err
			}
			out = append(out, entries...)
		}
	}
	return out, nil
}

// startsOne reports whether the command in an event is the command of one of the entries. Only Gemini CLI sends the
// server's command. For all other clients, startsOne returns true.
func startsOne(e hookevent.Event, entries []clientconfig.Entry) bool {
	return e.MCP.Name == "" || e.MCP.Resource || slices.ContainsFunc(entries, func(entry clientconfig.Entry) bool {
		return entry.Command == e.MCP.Command && slices.Equal(entry.Args, e.MCP.Args)
	})
}

// parents returns a directory and all its parents. If the path is not absolute, parents uses the working directory
// instead.
func parents(dir string) []string {
	if !filepath.IsAbs(dir) {
		dir, _ = os.Getwd() // if this fails, only the user's files are found
	}
	var out []string
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		out = append(out, dir)
		if filepath.Dir(dir) == dir {
			return out
		}
	}
}

func readEntries(f clientconfig.File) ([]clientconfig.Entry, error) {
	raw, err := clientsetup.ReadFile(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the servers of the client in %s: %w", f.Path, err)
	}
	entries, err := f.Entries(raw)
	if err != nil {
		return nil, fmt.Errorf("read the servers of the client in %s: %w", f.Path, err)
	}
	return entries, nil
}
