package cli

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/secretstore"
)

// printPlan prints the entries that `init` found in the clients' files.
func (s *setup) printPlan() {
	p := s.plan
	for _, f := range p.Files {
		if f.Err != nil {
			s.printf("%s: %s can't be read, and stays as it is: %v", f.File.Client.Name, s.shownPath(f.File.Path), f.Err)
		}
	}
	for i, f := range p.Files {
		rows := s.rowsOf(i)
		if len(rows) == 0 {
			continue
		}
		s.printf("%s (%s):", f.File.Client.Name, s.shownPath(f.File.Path))
		for _, row := range rows {
			s.printf("  %s", row)
		}
	}
	if p.Wrapped > 0 {
		s.printf("%d server(s) are already behind the mesh.", p.Wrapped)
	}
	if p.Disabled > 0 {
		s.printf("%d server(s) are disabled in the client, and stay as they are.", p.Disabled)
	}
	if len(p.Wraps)+len(p.Left)+p.Wrapped+p.Disabled == 0 {
		s.printf("No client of these has an MCP server: %s", strings.Join(s.clientNames(), ", "))
	}
}

func (s *setup) clientNames() []string {
	var out []string
	for _, c := range s.clients {
		out = append(out, c.Name)
	}
	return out
}

// rowsOf returns a line for each entry in a file, including the entries that the plan does not change.
func (s *setup) rowsOf(file int) []string {
	var out []string
	for _, w := range s.plan.Wraps {
		if w.File == file {
			server, _ := s.plan.Server(w.Server)
			text := fmt.Sprintf("%s: %s", w.Entry.Name, describeDefinition(server.Definition))
			if w.Entry.Project != "" {
				text += " (in " + s.shownPath(w.Entry.Project) + ")"
			}
			out = append(out, text)
			for _, detail := range definitionDetails(server.Definition, w.Entry.Variables) {
				out = append(out, "  "+detail)
			}
		}
	}
	for _, l := range s.plan.Left {
		if l.File == file {
			out = append(out, leftText(l))
		}
	}
	return out
}

func leftText(l clientsetup.Left) string {
	return fmt.Sprintf("%s: stays as it is, because it %s", l.Entry.Name, l.Reason)
}

// printLeft prints the entries that `init` does not change.
func (s *setup) printLeft(left []clientsetup.Left) {
	for _, l := range left {
		s.printf("%s: %s", s.plan.Files[l.File].File.Client.Name, leftText(l))
	}
}

func describeDefinition(d clientsetup.Definition) string {
	if d.URL != "" {
		return withoutQuery(d.URL)
	}
	return shellWords(slices.Clone(d.Command)...)
}

// printTrial prints whether a server behaves differently through the mesh.
func (s *setup) printTrial(t trial) {
	if t.reason != "" {
		s.printf("  %s: stays as it is, because it %s", t.server, t.reason)
		return
	}
	s.printf("  %s: the same %d tool(s) behind the mesh", t.server, len(t.tools))
}

// printChanges prints all changes, without the values of secrets.
func (s *setup) printChanges(files []meshFile) {
	fmt.Fprintln(s.out)
	hide := s.hideSecrets()
	for _, c := range s.changes {
		s.printFileDiff(s.shownPath(c.File.Path), "behind the mesh", hide, c.Before, c.After)
	}
	for _, f := range files {
		path := s.shownPath(f.path)
		if len(f.before) == 0 {
			s.printf("New file: %s", path)
		}
		if f.path == s.paths.Config {
			s.printFileDiff(path, "with these servers", hide, f.before, f.after)
		} else {
			s.printf("  %s", policySummary(string(f.after)))
		}
	}
	if n := s.countSecrets(); n > 0 && s.secrets.Kind() == secretstore.Keychain {
		s.printf("%d secret(s) move to the keychain of your system. A program that runs as you can still read them.", n)
	} else if n > 0 {
		s.printf("%d secret(s) move to files that only you can read (%s), because no keychain was found.", n, s.shownPath(filepath.Join(s.paths.Data, "secrets")))
	}
	for _, server := range s.plan.New() {
		if len(server.HomeEntries) > 0 {
			s.printf("%s has a private HOME, and can read these entries of yours there, because programs like it log in with them: %s", server.Name, strings.Join(server.HomeEntries, ", "))
		}
	}
	s.printNotes()
	if !s.flags.observe {
		s.printf("Calls that need approval wait for you. You own these agents, so you approve their calls yourself, and no second person has to agree.")
	}
	s.printObserved()
	if s.mustClose() {
		s.printf("Close Claude Code and Claude Desktop now: they rewrite their files, and could undo the change.")
	}
}

// mustClose reports whether the changes affect a client that rewrites its file from memory.
func (s *setup) mustClose() bool {
	return slices.ContainsFunc(s.changes, func(c clientsetup.Change) bool { return strings.HasPrefix(c.File.Client.ID, "claude-") })
}

func (s *setup) countSecrets() int {
	n := 0
	for _, server := range s.plan.New() {
		n += len(server.Secrets())
	}
	return n
}

// policySummary describes the effect of a suggested policy in one line.
func policySummary(text string) string {
	var asked []string
	allowed, limited := 0, 0
	for line := range strings.Lines(text) {
		name, rule, ok := strings.Cut(strings.TrimSpace(line), ": {action: ")
		switch {
		case !ok || strings.HasPrefix(name, "#") || strings.HasPrefix(name, "-"):
		case strings.HasPrefix(rule, "require_approval"):
			asked = append(asked, strings.Trim(name, `"'`))
		case strings.Contains(rule, "rate_limit"):
			limited++
		default:
			allowed++
		}
	}
	out := fmt.Sprintf("%d tool(s) run, %d with a limit, %d ask you", allowed, limited, len(asked))
	const shown = 5
	if len(asked) > shown {
		return out + ": " + strings.Join(asked[:shown], ", ") + ", …"
	}
	if len(asked) > 0 {
		return out + ": " + strings.Join(asked, ", ")
	}
	return out
}
