package clientsetup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
)

var (
	errOtherProgram = errors.New("they are different files")
	errLink         = errors.New("it is a link")
	errProcess      = errors.New("the path depends on the process that opens it")
)

// A Behind determines which entries in clients' files go through the person's own mesh, or through a remote mesh for
// which the person has a token. An entry that only looks like one of Sluice's own entries does not go through a mesh.
// The zero value accepts no entry.
type Behind struct {
	// Program is the path of the program that entries start.
	Program string
	// Config is the path of the configuration of the person's own mesh.
	Config string
	// Servers reports whether the mesh has the given server. If Servers is nil, the mesh can't be used, and NoMesh is
	// the reason.
	Servers func(name string) bool
	NoMesh  string
	// Elsewhere reports whether a client has a token for the mesh at the given URL. If it is nil, no client has such a
	// token.
	Elsewhere func(url, client string) bool
	// Undo returns the command that restores a client's files, in backticks. Fault contains this command as advice. Undo
	// may be nil.
	Undo func(client string) string
}

// Check sets Wrapped and Fault for the entries in a file.
func (b Behind) Check(f clientconfig.File, entries []clientconfig.Entry) {
	for i := range entries {
		e := &entries[i]
		if e.NamesSluice {
			e.Fault = b.fault(f, e)
		}
		e.Wrapped = e.NamesSluice && e.Fault == ""
	}
}

// fault returns the reason why an entry does not go through a mesh, or "" if it does.
func (b Behind) fault(f clientconfig.File, e *clientconfig.Entry) string {
	again := "undo init, then run it again"
	if b.Undo != nil {
		again = fmt.Sprintf("run %s, then init again", b.Undo(f.Client.ID))
	}
	if reason := b.programFault(f, e.Command); reason != "" {
		return reason + ": " + again
	}
	r := e.Relay
	if r == nil {
		return fmt.Sprintf("has arguments that init does not write (%s), so it may reach a mesh other than yours: remove it, or %s", strings.Join(e.Args, " "), again)
	}
	if names := e.TakesFromClient(); len(names) > 0 || e.Cwd != "" || e.URL != "" {
		return fmt.Sprintf("has settings that init does not write (%s), so it may reach a mesh other than yours: remove them", strings.Join(otherSettings(e, names), ", "))
	}
	if e.Reason != "" { // for example, it reads environment variables from a file
		return "has settings that init does not write, so it may reach a mesh other than yours: it " + e.Reason
	}
	if r.As != f.Client.ID && !sharesFile(f, r.As) {
		return fmt.Sprintf("uses the token of %s: %s", r.As, again)
	}
	switch project := f.Scope == clientconfig.Project; {
	case r.URL != "":
		if b.Elsewhere == nil || !b.Elsewhere(r.URL, r.As) {
			return fmt.Sprintf("names the mesh at %s, for which you have no token: %s", r.URL, again)
		}
	case b.Servers != nil && project && r.Config != "":
		return "names the configuration of a mesh, although the file belongs to a project: " + again
	case b.Servers != nil && !project && (b.Config == "" || filepath.Clean(r.Config) != filepath.Clean(b.Config)):
		return fmt.Sprintf("does not name the configuration of your mesh, %s, so the environment of the client could choose another mesh: %s", b.Config, again)
	case b.Servers == nil:
		return "starts your mesh, which can't be used: " + b.NoMesh
	case r.Server != "" && !b.Servers(r.Server):
		return fmt.Sprintf("names the server %q, which your mesh does not have: add it to the configuration of the mesh, or %s", r.Server, again)
	}
	return ""
}

func otherSettings(e *clientconfig.Entry, names []string) []string {
	names = slices.Clone(names)
	if e.Cwd != "" {
		names = append(names, "the working directory "+e.Cwd)
	}
	if e.URL != "" {
		names = append(names, "the URL "+e.URL)
	}
	return names
}

// programFault returns the reason why a command does not start this program, or "" if it does. Only a project file may
// contain the name of the program without a path, because the file is shared. If a project file contains a path, it
// must be the program's own path, because a link that comes with a project can be replaced.
func (b Behind) programFault(f clientconfig.File, command string) string {
	path, project := command, f.Scope == clientconfig.Project
	if command == "sluice" && project {
		found, err := exec.LookPath(command)
		if err != nil {
			return "starts `sluice`, which is not in PATH (" + err.Error() + ")"
		}
		path, project = found, false
	}
	if !filepath.IsAbs(path) {
		return fmt.Sprintf("starts %s, which is not an absolute path", command)
	}
	err := sameProgram(path, b.Program)
	if real, realErr := filepath.EvalSymlinks(b.Program); err == nil && project && path != b.Program && (realErr != nil || path != real) {
		err = errLink
	}
	if err != nil {
		return fmt.Sprintf("starts %s, and not this program, %s (%v)", path, b.Program, err)
	}
	return ""
}

// sameProgram returns an error unless the two paths lead to the same file. The paths may contain links. sameProgram
// also refuses a path through /proc or /dev, because such a path can lead to a different file in another process.
func sameProgram(path, program string) error {
	one, err := os.Stat(path)
	if err != nil {
		return err
	}
	other, err := os.Stat(program)
	if err != nil {
		return err
	}
	switch {
	case !os.SameFile(one, other):
		return errOtherProgram
	case dependsOnProcess(path):
		return errProcess
	}
	return nil
}

// dependsOnProcess reports whether a path, with its symbolic links, leads through a directory whose content differs
// between processes, such as /proc. It also returns true if the path has too many links.
func dependsOnProcess(path string) bool {
	const maxLinks = 40
	at, rest := string(filepath.Separator), strings.Split(filepath.ToSlash(path), "/")
	for links := 0; len(rest) > 0; {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		if next == "/proc" || next == "/dev" {
			return true
		}
		to, err := os.Readlink(next)
		if err != nil { // not a link
			at = next
			continue
		}
		if links++; links > maxLinks {
			return true
		}
		if filepath.IsAbs(to) {
			at = string(filepath.Separator)
		}
		rest = append(strings.Split(filepath.ToSlash(to), "/"), rest...)
	}
	return false
}

// sharesFile reports whether a project file, such as .mcp.json, also belongs to the given client.
func sharesFile(f clientconfig.File, client string) bool {
	other, ok := clientconfig.Find(client)
	if !ok || f.Scope != clientconfig.Project {
		return false
	}
	files := other.Files(clientconfig.System{Getenv: func(string) string { return "" }}, f.Project)
	return slices.ContainsFunc(files, func(o clientconfig.File) bool {
		return o.Scope == clientconfig.Project && filepath.Clean(o.Path) == filepath.Clean(f.Path)
	})
}
