package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/abi"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/worker"
)

// A Host is how agents reach what is not their own. It is safe for concurrent use.
type Host interface {
	// Call calls a tool on behalf of an agent, as far as its rights and policy allow. Where
	// people have to decide it waits for them for as long as hold. An error means that it
	// is not known what came of it.
	Call(ctx context.Context, a *Agent, call ToolCall, hold time.Duration) (ToolResult, error)
	// Enter counts a guest that runs, until leave is called. It fails where there are as many
	// as may be.
	Enter(a *Agent) (leave func(), err error)
	// Alone is told how a turn ended that went on without whoever had prompted.
	Alone(ctx context.Context, a *Agent, err error)
}

// ToolCall is a call that a guest asks for.
type ToolCall struct {
	Server, Tool string
	// Arguments are one JSON object.
	Arguments []byte
	// Approval is the one that the call waits for; empty before it is known.
	Approval string
}

// ToolResult is what came of a call.
type ToolResult struct {
	// Text is the tool's content as text, Structured its structured content, and IsError
	// whether it says that it failed.
	Text       string         `json:"text"`
	IsError    bool           `json:"is_error"`
	Structured jsontext.Value `json:"structured,omitempty"`
	// Refused is why there is nothing of that; nil where there is. Ran says that the call was
	// made all the same, or may have been.
	Refused *abi.Error `json:"-"`
	Ran     bool       `json:"-"`
	// Again says that the same call may be made later.
	Again bool `json:"-"`
	// GiveBack gives back what was taken of the agent's rights for a call that waits for
	// people; nil for others.
	GiveBack func() `json:"-"`
	// Denied says that policy denies it, or the agent's rights.
	Denied bool `json:"-"`
	// Waits is what the call waits for; nil where it waits for nothing.
	Waits *wasmagentv1.Waiting `json:"-"`
}

const (
	// held is how long one question to the host about a call waits for people.
	held = 10 * time.Minute
	// againAfter is how long an agent waits where its host is away, or has no room, and
	// between two questions.
	againAfter = time.Second
	// maxRestores is how often a guest is tried to be brought back where workers die.
	maxRestores = 5
)

// outcomeUnknown is the code of a call of which it is not known whether it was made.
var outcomeUnknown = enum.Name(commonv1.Code_CODE_OUTCOME_UNKNOWN)

var errDenied = errors.New("policy denied what it asked for, and its manifest says to stop then")

// Principal is the agent as policy knows it: with everybody who stands behind it.
func (s *Spec) Principal() *identityv1.Principal {
	p := &identityv1.Principal{
		Tenant: s.Creator.GetTenant(), Subject: Subject(s.Creator.GetTenant(), s.ID), Agent: s.Guest,
		Owner: principal.Person(s.Creator).Subject, Role: authv1.TokenRole_TOKEN_ROLE_AGENT,
	}
	if s.Creator.GetRole() != authv1.TokenRole_TOKEN_ROLE_AGENT { // a person is the owner, and judged by nothing here
		return p
	}
	direct := &identityv1.Principal{
		Tenant: s.Creator.GetTenant(), Subject: s.Creator.GetSubject(), Agent: s.Creator.GetAgent(), Owner: s.Creator.GetOwner(),
		Groups: s.Creator.GetGroups(), Role: s.Creator.GetRole(), TokenId: s.Creator.GetTokenId(), TokenCreated: s.Creator.GetTokenCreated(),
	}
	p.Chain = append([]*identityv1.Principal{direct}, s.Creator.GetChain()...)
	return p
}

// Subject is what the agent of that id is called in its tenant.
func Subject(tenant, id string) string { return "agent:" + tenant + "/" + id }

// tool calls a tool for a guest. Where people have to decide the agent is parked until they
// have: its guest gives its place to others.
func (a *Agent) tool(t *turn, out abi.Out) (in abi.In, err error) {
	in = abi.In{Kind: abi.Result}
	call := ToolCall{Server: out.Server, Tool: out.Tool, Arguments: out.Arguments}
	if len(call.Arguments) == 0 {
		call.Arguments = []byte("{}")
	}
	a.wait(t, &wasmagentv1.Waiting{WaitingFor: wasmagentv1.WaitingFor_WAITING_FOR_EFFECT})
	defer a.wait(t, nil)
	result, err := a.host.Call(t.ctx, a, call, 0)
	if err == nil && result.Waits != nil {
		call.Approval = result.Waits.GetApprovalId()
		t.tell("waits for people to decide on " + call.Tool + ": approval " + call.Approval)
		if !t.alone && !t.follow() {
			<-t.caller.Done()
			return in, errCancelled // nobody waits for it any more
		}
		a.wait(t, result.Waits)
		if !t.alone {
			t.alone, t.tell = true, func(string) {}
			close(t.parked)
		}
		giveBack := result.GiveBack
		err = a.park(t, func() (err error) {
			result, err = a.decided(t, call)
			switch {
			case err != nil, result.Refused == nil, result.Ran:
				t.called = true
			case giveBack != nil:
				giveBack()
			}
			return err
		})
		if err != nil {
			return in, err
		}
	}
	t.called = t.called || err != nil || result.Refused == nil || result.Ran
	if result.Denied {
		a.mu.Lock()
		a.usage.denied++
		a.mu.Unlock()
	}
	switch {
	case err != nil:
		in.Error = &abi.Error{Code: outcomeUnknown, Message: err.Error()}
		return in, nil
	case result.Denied && a.Rights.Manifest().GetStopOnDenial():
		return in, fmt.Errorf("%w: %s", errDenied, result.Refused.Message)
	case result.Refused != nil:
		in.Error = result.Refused
		return in, nil
	}
	if in.Result, err = json.Marshal(result); err == nil && len(in.Result) > 4*maxResult {
		in.Result, in.Error = nil, &abi.Error{Code: Code(errLarge), Message: "the call was made, and its answer has more than 1 MiB"}
	}
	return in, err
}

// decided waits until people have decided on a call, and returns what came of it then. It asks
// again, under the approval, until that has run its course: then it is refused for good.
func (a *Agent) decided(t *turn, call ToolCall) (ToolResult, error) {
	for lost := false; ; {
		begin := time.Now()
		result, err := a.host.Call(t.ctx, a, call, held)
		switch {
		case err != nil:
			lost = true
		case result.Waits.GetApprovalId() == call.Approval, result.Again && !result.Ran:
		case lost && result.Refused != nil && result.Refused.Code == enum.Name(commonv1.Code_CODE_APPROVAL_USED): // by this call
			return ToolResult{Refused: &abi.Error{Code: outcomeUnknown, Message: "the call was made, and its answer was lost"}, Ran: true}, nil
		default:
			return result, nil
		}
		select {
		case <-time.After(max(0, againAfter-time.Since(begin))):
		case <-t.ctx.Done():
			return ToolResult{}, t.ctx.Err()
		}
	}
}

// park gives up the guest's place while people decide.
func (a *Agent) park(t *turn, wait func() error) error {
	snapshot, err := t.instance.Snapshot(t.ctx)
	if err != nil {
		return err
	}
	_ = t.instance.Close(context.WithoutCancel(t.ctx)) // or the worker is gone, and it too
	t.instance = nil
	a.keepParked(len(snapshot))
	defer a.keepParked(0)
	t.leave()
	t.leave = nil
	if err := wait(); err != nil {
		return err
	}
	for t.leave == nil {
		if t.leave, err = a.host.Enter(a); err == nil {
			break
		}
		t.leave = nil
		select {
		case <-time.After(againAfter / 10):
		case <-t.ctx.Done():
			return t.ctx.Err()
		}
	}
	for range maxRestores {
		if t.instance, err = a.workers.Restore(t.ctx, a.Digest, a.engineLimits(), snapshot); !errors.Is(err, worker.ErrLost) {
			return err
		}
		t.instance = nil
	}
	return err
}

// keepParked says how large what is kept of a guest is that has no place, in bytes.
func (a *Agent) keepParked(bytes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.parked = bytes
}
