package realclients_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// A scenario is a tool call, and what its result contains.
type scenario struct {
	name, tool, args string
	asks             bool
	want             string
}

const refusal = "notes are kept for ten years"

func scenarios() []scenario {
	return []scenario{
		{name: "runs", tool: "list_notes", args: `{}`, want: "Welcome"},
		{name: "refused", tool: "delete_note", args: `{"id": "note-1"}`, want: refusal},
		{name: "waits", tool: "refund", args: `{"account": "ana", "amount": "12.50"}`, asks: true, want: "987.50"},
	}
}

// init wraps the entry of each client. The client starts the mesh, offers the tools to the model, and gives the model
// the result of a call that runs, the reason for a refused call, and the result of a call that a person approves while
// the client waits. The client does not need another host than the model's.
func TestRealClients_CallsRunAreRefusedAndWait(t *testing.T) {
	t.Parallel()
	modules := os.Getenv("SLUICE_TEST_CLIENTS")
	if modules == "" {
		t.Skip("run make test-clients, which sets SLUICE_TEST_CLIENTS and SLUICE_TEST_PROGRAMS")
	}
	for _, c := range clients() {
		t.Run(c.id, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			h.write(t, c.file, strings.ReplaceAll(c.config, "SLUICE", h.sluice))
			h.run(t, "init", "--yes", c.id)
			h.endMesh(t)
			stack.ReplaceInFile(t, filepath.Join(h.dir, ".config/sluice/policies/notes.yaml"),
				"{action: require_approval, reason: it removes or overwrites for good}", "{action: deny, reason: "+refusal+"}")
			mesh := 0
			for _, s := range scenarios() {
				t.Run(s.name, func(t *testing.T) { c.check(t, h, filepath.Join(modules, c.program), s) })
				pid := h.mesh(t)
				if pid == 0 || mesh != 0 && pid != mesh {
					t.Errorf("the mesh has ended with the client")
				}
				mesh = pid
			}
			if list := h.run(t, "decisions", "tail"); !strings.Contains(list, c.id) {
				t.Errorf("no decision has the name of the client:\n%s", list)
			}
		})
	}
}

// check runs the client with a model that makes the call of the scenario.
func (c client) check(t *testing.T, h *home, program string, s scenario) {
	t.Helper()
	m := newModel(t, s.tool, s.args)
	env := []string{"HTTP_PROXY=" + m.url, "HTTPS_PROXY=" + m.url, "http_proxy=" + m.url, "https_proxy=" + m.url, "NO_PROXY=127.0.0.1,localhost", "no_proxy=127.0.0.1,localhost"}
	if c.env != nil {
		env = append(env, c.env(m.url)...)
	}
	if c.before != nil {
		if out, err := h.client(t.Context(), env, append([]string{program}, c.before(m.url)...)); err != nil {
			t.Fatalf("%s: %v\n%s", c.id, err, out)
		}
	}
	var out string
	var err error
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		out, err = h.client(t.Context(), env, append([]string{program}, c.args(m.url)...))
	}()
	if s.asks && !h.approve(t, done) {
		t.Error("the call did not wait for a person")
	}
	<-done
	if err != nil {
		t.Errorf("%s: %v", c.id, err)
	}
	declared, results, refused, log := m.seen()
	if len(results) != 1 || !strings.Contains(results[0], s.want) {
		t.Errorf("the model got the results %q, want one with %q", results, s.want)
	}
	if !strings.Contains(out, s.want) {
		t.Errorf("the client does not print the model's answer, which contains %q", s.want)
	}
	t.Logf("result: %s\nrefused hosts: %q\ntools: %q\nmodel:\n%s\noutput:\n%s", results, refused, declared, log, out)
}
