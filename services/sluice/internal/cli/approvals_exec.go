package cli

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"

	"github.com/go-json-experiment/json"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
	"github.com/sluice-mesh/sluice/services/sluice/internal/notices"
)

// approvalCommand runs a command once for each approval that becomes pending.
type approvalCommand struct {
	*tool
	commands *notices.Commands
	// open contains the approvals that have not ended, by id.
	open map[string]*openApproval
	// waiting contains the ids of pending approvals for which the command has not been queued yet, oldest first. reported
	// is the number of waiting approvals in the last message about them.
	waiting  []string
	reported int
}

// openApproval is an approval that has not ended. queued is true after a run of the command was queued for the
// approval.
type openApproval struct {
	*approvalv1.Approval

	queued bool
}

func (a *openApproval) pending() bool {
	return a.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_PENDING
}

// approvalInput is the JSON document on the command's standard input.
type approvalInput struct {
	safetext.Approval
	Category string   `json:"category,omitzero"`
	Risk     string   `json:"risk,omitzero"`
	Tags     []string `json:"tags,omitempty"`
	// Pending is the number of pending approvals, including this one.
	Pending int `json:"pending"`
}

// startApprovalCommand returns an approvalCommand that runs the given program with arguments. The returned function
// kills the commands that are still running.
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
	return &approvalCommand{tool: t, commands: commands, open: make(map[string]*openApproval)}, stop, nil
}

var safeApprovalID = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

// moved handles a change to an approval. For a heartbeat, the approval is nil. If the approval is pending and the
// command has not run for it, moved queues the command. It also queues the command for earlier approvals that had to
// wait because the queue was full.
func (e *approvalCommand) moved(ctx context.Context, client approvalv1.ApprovalServiceClient, a *approvalv1.Approval) {
	if id := a.GetId(); safeApprovalID.MatchString(id) {
		switch known := e.open[id]; {
		case a.GetEnded() != nil: // its state can't change any more
			delete(e.open, id)
		case known != nil:
			known.Approval = a
		default:
			e.open[id] = &openApproval{Approval: a}
		}
		if now := e.open[id]; now != nil && now.pending() && !now.queued && !slices.Contains(e.waiting, id) {
			e.waiting = append(e.waiting, id)
		}
	}
	e.runWaiting(ctx, client)
}

// runWaiting queues the command for waiting approvals until the queue is full. If approvals are still waiting
// afterwards, it prints their number.
func (e *approvalCommand) runWaiting(ctx context.Context, client approvalv1.ApprovalServiceClient) {
	e.waiting = slices.DeleteFunc(e.waiting, func(id string) bool { return e.open[id] == nil || !e.open[id].pending() })
	for len(e.waiting) > 0 && !e.commands.Full() {
		a := e.open[e.waiting[0]]
		e.waiting, a.queued = e.waiting[1:], true
		e.runFor(ctx, client, a.Approval)
	}
	if n := len(e.waiting); n != e.reported {
		e.reported = n
		if n > 0 {
			fmt.Fprintf(e.errOut, "sluice: too many commands wait: the command is run later for %d more approvals\n", n)
		}
	}
}

func (e *approvalCommand) runFor(ctx context.Context, client approvalv1.ApprovalServiceClient, a *approvalv1.Approval) {
	id := a.GetId()
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
		if a.pending() {
			n++
		}
	}
	return n
}

// classOf returns the classification of the tool in an approval. It returns nil if the classification is unknown or
// can't be read.
func (e *approvalCommand) classOf(ctx context.Context, client approvalv1.ApprovalServiceClient, id string) *policyv1.Classification {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	resp, err := client.GetApproval(ctx, &approvalv1.GetApprovalRequest{ApprovalId: id, View: true})
	if err != nil {
		_ = oneLine(e.errOut, "sluice: the command is run without the class of the tool for approval %s: %v", id, e.explainError(err))
		return nil
	}
	return resp.GetView().GetClassification()
}
