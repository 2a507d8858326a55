package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
)

// recordingClient has one pending approval and records the changes that are requested.
type recordingClient struct {
	approvalv1.ApprovalServiceClient

	state   approvalv1.ApprovalState
	changes []string
}

func (c *recordingClient) approval() *approvalv1.Approval {
	return &approvalv1.Approval{Id: approvalID, State: c.state, Server: "pay", Name: "refund"}
}

func (c *recordingClient) GetApproval(context.Context, *approvalv1.GetApprovalRequest, ...grpc.CallOption) (*approvalv1.GetApprovalResponse, error) {
	return &approvalv1.GetApprovalResponse{Approval: c.approval(), View: &approvalv1.View{Params: `{"amount":1}`}}, nil
}

func (c *recordingClient) DecideApproval(context.Context, *approvalv1.DecideApprovalRequest, ...grpc.CallOption) (*approvalv1.DecideApprovalResponse, error) {
	c.changes = append(c.changes, "decide")
	return &approvalv1.DecideApprovalResponse{Approval: c.approval()}, nil
}

func (c *recordingClient) ResolveOutcome(context.Context, *approvalv1.ResolveOutcomeRequest, ...grpc.CallOption) (*approvalv1.ResolveOutcomeResponse, error) {
	c.changes = append(c.changes, "resolve")
	return &approvalv1.ResolveOutcomeResponse{Approval: c.approval()}, nil
}

func (c *recordingClient) CancelApproval(context.Context, *approvalv1.CancelApprovalRequest, ...grpc.CallOption) (*approvalv1.CancelApprovalResponse, error) {
	c.changes = append(c.changes, "cancel")
	return &approvalv1.CancelApprovalResponse{Approval: c.approval()}, nil
}

// The standard input of a test is not a terminal. Without --yes, a command that lets a call run or be repeated prints
// the call and does not change the approval. A command that only refuses does not need --yes.
func TestApprovals_WithoutATerminalOnlyRefusalsNeedNoYes(t *testing.T) {
	t.Parallel()
	if isInteractive(false) {
		t.Skip("standard input is a terminal")
	}
	const pending, unknown = approvalv1.ApprovalState_APPROVAL_STATE_PENDING, approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN
	vote := func(verdict approvalv1.Verdict) func(*tool, *recordingClient, bool) error {
		return func(tool *tool, c *recordingClient, yes bool) error {
			return tool.decide(t.Context(), c, ballot{id: approvalID, verdict: verdict, assumeYes: yes})
		}
	}
	for name, tt := range map[string]struct {
		state    approvalv1.ApprovalState
		run      func(*tool, *recordingClient, bool) error
		needsYes bool
	}{
		"approve": {pending, vote(approvalv1.Verdict_VERDICT_APPROVE), true},
		"deny":    {pending, vote(approvalv1.Verdict_VERDICT_DENY), false},
		"resolve": {unknown, func(tool *tool, c *recordingClient, yes bool) error {
			return tool.actOn(t.Context(), c, approvalID, yes, tool.resolveAction(approvalv1.Resolution_RESOLUTION_FAILED, "looked"))
		}, true},
		"cancel": {pending, func(tool *tool, c *recordingClient, yes bool) error {
			return tool.actOn(t.Context(), c, approvalID, yes, tool.cancelAction("over"))
		}, false},
	} {
		for _, yes := range []bool{false, true} {
			var out bytes.Buffer
			c := &recordingClient{state: tt.state}
			err := tt.run(&tool{self: "sluice", out: &out, errOut: &out}, c, yes)
			if refused := tt.needsYes && !yes; refused != errors.Is(err, errNoTerminal) || refused != (len(c.changes) == 0) {
				t.Errorf("%s, --yes %v: %v, changes %v", name, yes, err, c.changes)
			}
			if !strings.Contains(out.String(), `"amount": 1`) && !strings.Contains(out.String(), `{"amount":1}`) {
				t.Errorf("%s, --yes %v: the call is not printed: %s", name, yes, out.String())
			}
		}
	}
	if err := new(tool).confirm(t.Context(), false, "Restore?"); !errors.Is(err, errNoTerminal) || !strings.Contains(err.Error(), "--yes") {
		t.Errorf("a question without a terminal: %v", err)
	}
}
