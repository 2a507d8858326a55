package cli

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
)

// sharedName is the command in entries in files that are shared in a repository.
const sharedName = "sluice"

// printNotes prints notes about the changes before the changes are written.
func (s *setup) printNotes() {
	for _, note := range slices.Concat(s.sharedNotes(), s.timeoutNotes(), s.nameNotes(), s.variableNotes()) {
		s.printf("%s", note)
	}
}

// sharedNotes returns a note that lists the files that are shared in a repository. These files do not contain the
// program's path, so each person who uses them needs the program in PATH.
func (s *setup) sharedNotes() []string {
	var paths []string
	for _, c := range s.changes {
		if c.File.Scope == clientconfig.Project {
			paths = append(paths, s.shownPath(c.File.Path))
		}
	}
	if len(paths) == 0 {
		return nil
	}
	out := []string{fmt.Sprintf("%s: others who use this file need Sluice in PATH, too, because its entries start `%s`.", strings.Join(paths, ", "), sharedName)}
	if problem := sharedProblem(exec.LookPath, s.programPath()); problem != "" {
		out = append(out, "Warning: "+problem)
	}
	return out
}

// sharedProblem returns the reason why the command in shared files would not start the program at the given path, or ""
// if it would.
func sharedProblem(look func(string) (string, error), path string) string {
	found, err := look(sharedName)
	if err != nil {
		return fmt.Sprintf("`%s` is not in your PATH, so the client can't start these entries. Add the folder of %s to PATH.", sharedName, path)
	}
	one, err := os.Stat(found)
	if err == nil {
		var other os.FileInfo
		if other, err = os.Stat(path); err == nil && os.SameFile(one, other) {
			return ""
		}
	}
	return fmt.Sprintf("`%s` in your PATH is %s, and not this program (%s).", sharedName, found, path)
}

// holdMargin is the minimum difference between the client's timeout and the time for which the mesh can hold a call.
const holdMargin = 15 * time.Second

// timeoutNotes returns notes about entries whose timeout is too short for calls that wait for a person.
func (s *setup) timeoutNotes() []string {
	hold := config.Default().Approvals.Hold
	if f, err := config.Load(s.paths.Config, app.Env); err == nil {
		hold = f.Approvals.Hold
	}
	var out []string
	for _, w := range s.plan.Wraps {
		if note := timeoutNote(s.plan.Files[w.File].File.Client, w.Entry, hold); note != "" {
			out = append(out, note)
		}
	}
	return out
}

func timeoutNote(c clientconfig.Client, e clientconfig.Entry, hold time.Duration) string {
	timeout, needed := c.CallTimeout(e), hold+holdMargin
	if c.ProgressExtendsCalls() {
		needed = min(needed, holdMargin)
	}
	if hold == 0 || timeout == 0 || timeout >= needed {
		return ""
	}
	what := fmt.Sprintf("%s gives up on calls of %s after %v, but a call that needs approval waits for %v:", c.Name, e.Name, timeout, hold)
	if member := c.TimeoutMember(needed); member != "" {
		return what + " set " + member + " in the entry."
	}
	return what + " set a shorter approvals.hold in the mesh's configuration."
}

// nameNotes returns notes about new servers whose names differ from the names of their entries because another server
// already has the name.
func (s *setup) nameNotes() []string {
	var out []string
	for _, server := range s.plan.New() {
		for _, w := range s.plan.Wraps {
			if w.Server == server.Name && clientsetup.ServerName(w.Entry.Name) != server.Name {
				out = append(out, fmt.Sprintf("%s is the name of %s of %s in policies and records, because another server has the name %s.",
					server.Name, w.Entry.Name, s.plan.Files[w.File].File.Client.Name, clientsetup.ServerName(w.Entry.Name)))
				break
			}
		}
	}
	return out
}

// variableNotes returns notes about entries with values from the environment. The mesh keeps the values from this run
// even if a variable changes later.
func (s *setup) variableNotes() []string {
	var out []string
	for _, server := range s.plan.New() {
		for _, w := range s.plan.Wraps {
			if w.Server == server.Name && len(w.Entry.Variables) > 0 {
				out = append(out, fmt.Sprintf("%s of %s keeps the values that these variables have now: %s. After a change of a variable, undo and run init again.",
					w.Entry.Name, s.plan.Files[w.File].File.Client.Name, strings.Join(w.Entry.Variables, ", ")))
				break
			}
		}
	}
	return out
}
