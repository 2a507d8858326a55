package cli

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// prove starts each wrapped entry as its client would, lists its tools, and makes one call that is refused.
func (s *setup) prove(ctx context.Context) error {
	var failed []string
	proved := make(map[string]bool)
	for _, w := range s.plan.Wraps {
		file := s.plan.Files[w.File].File
		key := file.Client.ID + " " + w.Server
		if proved[key] {
			continue
		}
		proved[key] = true
		_, args := s.entryCommand(file, w.Server)
		cmd := exec.Command(s.programPath(), args...) //nolint:gosec,noctx // this program; its connection ends it
		listed, err := listServerOfCommand(ctx, cmd)
		if err == nil {
			err = compareVisible(listed, s.trialOf(w.Server))
		}
		if err != nil {
			failed = append(failed, fmt.Sprintf("%s of %s: %v", w.Entry.Name, file.Client.Name, err))
			continue
		}
		s.printf("%s starts %s behind the mesh.", file.Client.Name, w.Entry.Name)
	}
	s.printNext()
	if len(failed) > 0 {
		return fmt.Errorf("these entries do not work yet. %s restores everything.\n%s", s.command("init --undo"), strings.Join(failed, "\n"))
	}
	return nil
}

// trialOf returns the trial of a server in this run, or nil if the mesh already had the server.
func (s *setup) trialOf(server string) *trial {
	for i, t := range s.trials {
		if t.server == server {
			return &s.trials[i]
		}
	}
	return nil
}

// compareVisible compares the tools of an entry behind the mesh with those of the trial.
func compareVisible(listed listedServer, t *trial) error {
	if t == nil {
		return nil
	}
	want, err := definitionsByName(t.direct.tools)
	if err != nil {
		return err
	}
	got, err := definitionsByName(listed.tools)
	if err != nil {
		return err
	}
	for _, name := range sortedNames(want) { // the mesh adds a tool of its own, for waiting calls
		if !bytes.Equal(want[name], got[name]) {
			return fmt.Errorf("the tool %q is missing or has another definition", name)
		}
	}
	return nil
}

func (s *setup) printNext() {
	names := make(map[string]bool)
	var clients []string
	for _, c := range s.changes {
		if !names[c.File.Client.Name] {
			names[c.File.Client.Name] = true
			clients = append(clients, c.File.Client.Name)
		}
	}
	s.printLeft()
	s.printf("Start %s again. Then:", strings.Join(clients, " and "))
	s.printf("  %s approvals list    calls that wait for you", s.self)
	s.printf("  %s decisions tail    every call, and why it ran or not", s.self)
	s.printf("  %s init --undo       gives the clients' files back", s.self)
}
