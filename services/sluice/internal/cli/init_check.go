package cli

import (
	"slices"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
)

// exitUnreadable is the exit code of `init --check` if a file can't be read.
const exitUnreadable = 2

type bypass struct {
	Client  string `json:"client"`
	File    string `json:"file"`
	Server  string `json:"server"`
	Scope   string `json:"scope"`
	Project string `json:"project,omitzero"`
	// Fault is the reason why an entry that looks like one of Sluice's own entries does not go through the mesh.
	Fault string `json:"fault,omitzero"`
}

type unreadable struct {
	Client string `json:"client"`
	File   string `json:"file"`
	Error  string `json:"error"`
}

type checkReport struct {
	Bypasses   []bypass     `json:"bypasses"`
	Unreadable []unreadable `json:"unreadable"`
	Wrapped    int          `json:"wrapped"`
}

// check prints the servers that clients reach without the mesh. It also reads files in projects that clients know.
func (s *setup) check() error {
	found := s.scan(s.flags.project)
	for _, project := range clientsetup.Projects(found) {
		if project == s.flags.project {
			continue
		}
		for _, f := range s.scan(project) {
			if f.File.Scope == clientconfig.Project {
				found = append(found, f)
			}
		}
	}
	report := checkReport{Bypasses: []bypass{}, Unreadable: []unreadable{}}
	for _, f := range found {
		client, path := f.File.Client.ID, s.shownPath(f.File.Path)
		if f.Err != nil {
			report.Unreadable = append(report.Unreadable, unreadable{client, path, f.Err.Error()})
		}
		for _, e := range f.Entries {
			switch {
			case e.Wrapped:
				report.Wrapped++
			case !e.Disabled:
				report.Bypasses = append(report.Bypasses, bypass{client, path, e.Name, e.Scope.String(), e.Project, e.Fault})
			}
		}
	}
	if err := s.printCheck(report); err != nil {
		return err
	}
	switch {
	case len(report.Unreadable) > 0:
		return exitError{errSilent, exitUnreadable}
	case len(report.Bypasses) > 0:
		return errSilent
	default:
		return nil
	}
}

func (s *setup) printCheck(r checkReport) error {
	if s.json() {
		return s.printJSON(r)
	}
	for _, u := range r.Unreadable {
		s.printf("%s: %s can't be read: %s", u.Client, u.File, u.Error)
	}
	for _, b := range r.Bypasses {
		where := ""
		if b.Project != "" {
			where = ", in the project " + s.shownPath(b.Project)
		}
		if b.Fault != "" {
			where += "): the entry " + b.Fault
		} else {
			where += ")"
		}
		s.printf("%s reaches %s without the mesh (%s%s", b.Client, b.Server, b.File, where)
	}
	s.printf("%d server(s) behind the mesh, %d without it, %d file(s) that can't be read.", r.Wrapped, len(r.Bypasses), len(r.Unreadable))
	s.printf("Not visible in files, so not checked: connectors that a client's vendor runs, servers of plugins and extensions, and tools of the client itself.")
	s.printWayOut(r.Bypasses)
	return nil
}

// printWayOut prints the commands that make clients reach the servers only through the mesh. Each project needs a
// separate command.
func (s *setup) printWayOut(bypasses []bypass) {
	var commands []string
	for _, b := range bypasses {
		command := s.command("init")
		switch {
		case b.Fault != "":
			continue // the fault already contains advice
		case b.Scope == clientconfig.Project.String():
			command = s.command("init --project " + shellWords(b.Project))
		}
		if !slices.Contains(commands, command) {
			commands = append(commands, command)
		}
	}
	for _, command := range commands {
		s.printf("To put servers behind the mesh: %s", command)
	}
}
