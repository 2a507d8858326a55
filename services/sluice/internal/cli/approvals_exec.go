package cli

import (
	"bytes"
	"context"
	"fmt"
	"regexp"

	"github.com/go-json-experiment/json"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
	"github.com/sluice-mesh/sluice/services/sluice/internal/notices"
)

// approvalCommand runs a command for each approval that becomes pending, once for each approval.
type approvalCommand struct {
	*tool
	commands *notices.Commands
	// open contains the approvals that have not ended, by their ids.
	open map[string]openApproval
}

type openApproval struct{ pending, told bool }

// approvalInput is what the command reads on its standard input.
type approvalInput struct {
	safetext.Approval
	Category string   `json:"category,omitzero"`
	Risk     string   `json:"risk,omitzero"`
	Tags     []string `json:"tags,omitempty"`
	// Pending is the number of pending approvals, including this one.
	Pending int `json:"pending"`
}

// startApprovalCommand starts a command for approvals. stop kills commands that still run.
func (t *tool) startApprovalCommand(ctx context.Context, argv []string) (_ *approvalCommand, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	commands, err := notices.StartCommands(ctx, argv, t.errOut)
	if err != nil {
		cancel()
		return nil, nil, usageError{fmt.Errorf("--exec: %w", err)}
	}
	stop = func() {
		cancel()
		commands.Wait()
	}
	return &approvalCommand{tool: t, commands: commands, open: make(map[string]openApproval)}, stop, nil
}

var safeApprovalID = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

// moved runs the command if an approval is pending and the command was not run for it before.
func (e *approvalCommand) moved(ctx context.Context, client approvalv1.ApprovalServiceClient, a *approvalv1.Approval) {
	id := a.GetId()
	if !safeApprovalID.MatchString(id) {
		return
	}
	if a.GetEnded() != nil { // its state does not change any more
		delete(e.open, id)
		return
	}
	now := openApproval{pending: a.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_PENDING, told: e.open[id].told}
	tell := now.pending && !now.told
	now.told = now.told || tell
	e.open[id] = now
	if !tell {
		return
	}
	input := approvalInput{Approval: safetext.ApprovalOf(a), Pending: e.pending()}
	if class := e.classOf(ctx, client, id); class != nil {
		input.Category, input.Risk, input.Tags = enum.Name(class.GetCategory()), enum.Name(class.GetRisk()), class.GetTags()
	}
	var text bytes.Buffer
	if err := json.MarshalWrite(safetext.NewWriter(&text), input, json.Deterministic(true)); err != nil {
		fmt.Fprintf(e.errOut, "sluice: the command was not run for approval %s: %v\n", id, err)
		return
	}
	text.WriteByte('\n')
	e.commands.Add(notices.Job{ID: id, Pending: input.Pending, Input: text.Bytes()})
}

func (e *approvalCommand) pending() (n int) {
	for _, a := range e.open {
		if a.pending {
			n++
		}
	}
	return n
}

// classOf returns the class of the tool, or nil if it is unknown or can't be read.
func (e *approvalCommand) classOf(ctx context.Context, client approvalv1.ApprovalServiceClient, id string) *policyv1.Classification {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	resp, err := client.GetApproval(ctx, &approvalv1.GetApprovalRequest{ApprovalId: id, View: true})
	if err != nil {
		fmt.Fprintf(e.errOut, "sluice: the command gets no class of the tool for approval %s: %v\n", id, e.explainError(err))
		return nil
	}
	return resp.GetView().GetClassification()
}
