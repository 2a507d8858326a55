package rawmesh

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// Approval contains the fields that most tests read from `sluice approvals list`.
type Approval struct{ ID, State, Server, Tool string }

// RunApprovals runs `sluice approvals` with a token. The output is human-readable, whereas [Mesh.RunApprovalsJSON]
// produces JSON.
func (m *Mesh) RunApprovals(t *testing.T, token string, args ...string) stack.CommandResult {
	t.Helper()
	return stack.Run(t, stack.Command{Args: append([]string{"approvals", "--addr", m.GRPC}, args...), Env: []string{"SLUICE_TOKEN=" + token}})
}

// RunApprovalsJSON runs `sluice approvals` as the operator, with JSON output.
func (m *Mesh) RunApprovalsJSON(t *testing.T, args ...string) stack.CommandResult {
	t.Helper()
	return m.RunApprovalsJSONAs(t, stack.OperatorToken, args...)
}

// RunApprovalsJSONAs runs `sluice approvals` with a token, with JSON output.
func (m *Mesh) RunApprovalsJSONAs(t *testing.T, token string, args ...string) stack.CommandResult {
	t.Helper()
	return m.RunApprovals(t, token, append([]string{"--output", "json"}, args...)...)
}

// ListApprovals runs `sluice approvals list` as the operator and returns the approvals in its output.
func (m *Mesh) ListApprovals(t *testing.T, args ...string) []Approval {
	t.Helper()
	ran := m.RunApprovalsJSON(t, append([]string{"list"}, args...)...)
	var out []Approval
	if err := json.Unmarshal([]byte(ran.Stdout), &out); err != nil {
		t.Fatalf("%v: %+v", err, ran)
	}
	return out
}

// AwaitOnePending waits until exactly one approval is pending and returns its id.
func (m *Mesh) AwaitOnePending(t *testing.T) string {
	t.Helper()
	for range 100 {
		if found := m.ListApprovals(t, "--state", "pending"); len(found) == 1 {
			return found[0].ID
		}
		<-time.After(50 * time.Millisecond)
	}
	t.Fatal("no approval is pending, or several are")
	return ""
}

// AwaitOnlyState waits until the mesh has exactly one approval and this approval is in the given state.
func (m *Mesh) AwaitOnlyState(t *testing.T, state string) {
	t.Helper()
	var found []Approval
	for range 100 {
		if found = m.ListApprovals(t, "--all"); len(found) == 1 && found[0].State == state {
			return
		}
		<-time.After(50 * time.Millisecond)
	}
	t.Errorf("approvals are %v, want one that is %s", found, state)
}

// AwaitState waits until the approval with the given id is in the given state.
func (m *Mesh) AwaitState(t *testing.T, id, state string) {
	t.Helper()
	var found []Approval
	for range 100 {
		found = m.ListApprovals(t, "--all")
		for _, a := range found {
			if a.ID == id && a.State == state {
				return
			}
		}
		<-time.After(50 * time.Millisecond)
	}
	t.Fatalf("%s is not %s: %+v", id, state, found)
}
