package cli

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
)

// prove starts each entry that `init` has changed as its client would, and lists its tools. If all entries work, prove
// makes one call that the mesh refuses.
func (s *setup) prove(ctx context.Context) error {
	var failed []string
	steps := &progress{print: s.printf}
	proved := make(map[string]bool)
	for _, w := range s.plan.Wraps {
		file := s.plan.Files[w.File].File
		key := file.Client.ID + " " + w.Server
		if proved[key] {
			continue
		}
		proved[key] = true
		command, args := s.entryCommand(file, w.Server)
		cmd := exec.Command(command, args...) //nolint:gosec,noctx // this program, or sluice in PATH; its connection ends it
		ended := steps.during("%s: starting %s behind the mesh, which may install its package …", file.Client.Name, w.Entry.Name)
		listed, err := listServerOfCommand(ctx, cmd)
		ended()
		if ctx.Err() != nil {
			return fmt.Errorf("stopped before each entry was started. The changes are written; %s restores everything", s.command("init --undo"))
		}
		if err == nil {
			err = compareVisible(listed, s.trialOf(w.Server))
		}
		if err != nil {
			failed = append(failed, fmt.Sprintf("%s of %s: %s", w.Entry.Name, file.Client.Name, trialFault(err)))
			continue
		}
		s.printf("%s starts %s behind the mesh.", file.Client.Name, w.Entry.Name)
	}
	if len(failed) == 0 {
		if err := s.showRefusal(ctx); err != nil {
			failed = append(failed, err.Error())
		}
	}
	s.printCopies()
	s.printNext()
	if len(failed) > 0 {
		return fmt.Errorf("these entries do not work yet. %s restores everything.\n%s", s.command("init --undo"), strings.Join(failed, "\n"))
	}
	return nil
}

// showRefusal calls a tool that does not exist, and prints the refusal. The call does not reach the server. With
// --observe, the mesh refuses nothing, so showRefusal does nothing.
func (s *setup) showRefusal(ctx context.Context) error {
	if s.flags.observe || len(s.plan.Wraps) == 0 {
		return nil
	}
	const unknownTool = "sluice_init_example" // the name is visible in records
	w := s.plan.Wraps[0]
	client := s.plan.Files[w.File].File.Client
	session, err := s.connectAs(ctx, w.Server, client.ID)
	if err != nil {
		return err
	}
	defer session.close(ctx)
	raw, err := session.request(ctx, "tools/call", map[string]any{"name": unknownTool, "arguments": struct{}{}})
	if err != nil {
		return fmt.Errorf("call a tool that does not exist: %w", err)
	}
	var result toolResult
	if err := json.Unmarshal(raw, &result); err != nil {
		return fmt.Errorf("read the result of a call: %w", err)
	}
	if result.Meta.Decision.Code == "" {
		return nil // the server was configured before this run, and all its calls are allowed or only observed
	}
	s.printf("An example of a refusal: %s calls %s of %s, a tool that the policy does not allow:", client.Name, unknownTool, w.Entry.Name)
	result.IsError = false // the refusal is part of the output of init
	s.printText(result)
	return nil
}

// trialOf returns the trial of a server in this run, or nil if the server was already in the mesh.
func (s *setup) trialOf(server string) *trial {
	for i, t := range s.trials {
		if t.server == server {
			return &s.trials[i]
		}
	}
	return nil
}

// compareVisible compares the tools in the trial with the list that an entry gets through the mesh. It returns an error
// if a tool is missing in the list or has a different definition in the list.
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
	for _, name := range sortedNames(want) { // the list can have more tools, because the mesh adds a tool
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
	if n := len(s.plan.Left); n > 0 {
		s.printf("%d entries stay as they are, for the reasons above.", n)
	}
	s.printf("Start %s again. Then:", enumerated(clients))
	var hints [][2]string
	for _, c := range s.changes {
		if id := c.File.Client.ID; hosttools.Name(id) != "" && names[c.File.Client.Name] {
			delete(names, c.File.Client.Name) // a client may have several files
			hints = append(hints, [2]string{"hook install " + id, "the client's own tools, such as its shell, under the same policies"})
		}
	}
	hints = append(hints, [2]string{"approvals list", "calls that wait for you"}, [2]string{"decisions tail", "every call, and why it ran or not"})
	if s.flags.observe {
		hints = append(hints, [2]string{"report", "what the policies would have refused, asked and limited"})
	}
	hints = append(hints, [2]string{"init --undo", "gives the clients' files back"})
	width := 0
	for _, h := range hints {
		width = max(width, len(h[0]))
	}
	for _, h := range hints {
		s.printf("  %s %-*s  %s", s.self, width, h[0], h[1])
	}
}

// enumerated joins names for a sentence: "a", "a and b", "a, b and c".
func enumerated(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}
