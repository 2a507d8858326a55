package realclients_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/scripted"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// A scenario is a tool call together with the text that its result must contain.
type scenario struct {
	name, tool, args string
	asks             bool
	want             string
}

const refusal = "notes are kept for ten years"

func (c client) scenarios() []scenario {
	confirms := scenario{name: "confirms", tool: "create_note", args: `{"title": "Groceries"}`, asks: true, want: "note-4"}
	if c.declines {
		confirms.asks, confirms.want = false, "Not executed: declined at the agent"
	}
	return []scenario{
		{name: "runs", tool: "list_notes", args: `{}`, want: "Welcome"},
		{name: "refused", tool: "delete_note", args: `{"id": "note-1"}`, want: refusal},
		{name: "waits", tool: "refund", args: `{"account": "ana", "amount": "12.50"}`, asks: true, want: "987.50"},
		confirms,
	}
}

// setUp puts a client's server behind a mesh. The mesh's policy denies deleting notes, requires approval for a refund,
// and lets the user of the agent confirm a new note.
func (c client) setUp(t *testing.T) *home {
	t.Helper()
	h := newHome(t)
	h.write(t, c.file, strings.ReplaceAll(c.config, "SLUICE", h.sluice))
	for name, text := range c.more {
		h.write(t, name, text)
	}
	h.run(t, "init", "--yes", c.id)
	h.endMesh(t)
	policy := filepath.Join(h.dir, ".config/sluice/policies/notes.yaml")
	stack.ReplaceInFile(t, policy, "{action: require_approval, reason: it removes or overwrites for good}", "{action: deny, reason: "+refusal+"}")
	stack.ReplaceInFile(t, policy, "create_note: {action: allow,", "create_note: {action: require_approval, self_confirm: true,")
	return h
}

// The client starts the mesh and offers the tools to the model. The model receives the result of a call that runs, the
// reason for a refused call, and the result of a call that a person approves while the client waits. The client needs
// no host except the model's host, and the mesh keeps running when the client exits.
func TestRealClients_CallsRunAreRefusedAndWait(t *testing.T) {
	t.Parallel()
	modules := os.Getenv("SLUICE_TEST_CLIENTS")
	if modules == "" {
		t.Skip("run make test-clients, which sets SLUICE_TEST_CLIENTS and SLUICE_TEST_PROGRAMS")
	}
	for _, c := range clients() {
		t.Run(c.id, func(t *testing.T) {
			t.Parallel()
			h, mesh := c.setUp(t), 0
			for _, s := range c.scenarios() {
				t.Run(s.name, func(t *testing.T) { c.check(t, h, filepath.Join(modules, c.program), s) })
				pid := h.mesh(t)
				if pid == 0 || mesh != 0 && pid != mesh {
					t.Error("the mesh has ended with the client")
				}
				mesh = pid
			}
			if list := h.run(t, "decisions", "tail"); !strings.Contains(list, c.id) {
				t.Errorf("no decision has the name of the client:\n%s", list)
			}
		})
	}
}

// check runs the client with a model that makes the scenario's call, and checks the result.
func (c client) check(t *testing.T, h *home, program string, s scenario) {
	t.Helper()
	m := scripted.New(t, scripted.Call{Tool: s.tool, Args: s.args})
	out := c.runWith(t, h, m, program, s.asks)
	seen := m.Seen()
	if len(seen.Results) != 1 || !strings.Contains(seen.Results[0], s.want) {
		t.Errorf("the model got the results %q, want one with %q", seen.Results, s.want)
	}
	if !strings.Contains(out, s.want) {
		t.Errorf("the client does not print the model's answer, which contains %q", s.want)
	}
	for _, host := range seen.Refused {
		if !slices.Contains(c.hosts, host) {
			t.Errorf("the client tried to connect to %s", host)
		}
	}
	t.Logf("the model got %s", seen.Results)
	if t.Failed() {
		t.Logf("tools: %q\nrequests to the model:\n%s\noutput:\n%s", seen.Declared, seen.Log, out)
	}
}

// runWith runs the client with a model, and returns the client's output. If asks is true, it approves the call while
// the client waits.
func (c client) runWith(t *testing.T, h *home, m *scripted.Model, program string, asks bool) (out string) {
	t.Helper()
	env := m.Env()
	if c.env != nil {
		env = append(env, c.env(m.URL)...)
	}
	if c.before != nil {
		if out, err := h.client(t.Context(), env, append([]string{program}, c.before(m.URL)...)); err != nil {
			t.Fatalf("%s: %v\n%s", c.id, err, out)
		}
	}
	var err error
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		out, err = h.client(t.Context(), env, append([]string{program}, c.args(m.URL)...))
	}()
	if asks && !h.approve(t, done) {
		t.Error("the call did not wait for a person")
	}
	<-done
	if err != nil {
		t.Errorf("%s: %v", c.id, err)
	}
	return out
}
