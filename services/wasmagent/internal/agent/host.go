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
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

// A Host is how agents reach what is not their own. It is safe for concurrent use.
type Host interface {
	// Allow takes a call out of the rights of an agent, and of those behind it, and returns a
	// way to give it back; or it says why there are none for it. An error means that it is not
	// known.
	Allow(ctx context.Context, a *Agent, call ToolCall) (giveBack func(), refused *abi.Error, err error)
	// Call calls a tool on behalf of an agent, as far as policy allows. Where people have to
	// decide it waits for them for as long as hold. An error means that it is not known what
	// came of it.
	Call(ctx context.Context, a *Agent, call ToolCall, hold time.Duration) (ToolResult, error)
	// Model is the model that is asked where an agent asks for one, which may be empty, and
	// whether it can be. Server is the one that has [AskTool]. Spent takes what a question took
	// out of rights.
	Model(a *Agent, asked string) (name string, ok bool)
	Server() string
	Spent(ctx context.Context, a *Agent, call ToolCall, tokens, nanos int64)
	// Tools are the tools of servers that an agent may call.
	Tools(ctx context.Context, a *Agent) ([]ToolInfo, error)
	// Enter waits for a place in which a guest may run, which leave gives back. back says that the turn
	// had a place before: then it comes before others, and waits until ctx ends. Errors: ctx's,
	// [ErrPlaces].
	Enter(ctx context.Context, a *Agent, back bool) (leave func(), err error)
	// Ready has a module of an agent's guest be compiled, by its digest: the one that the guest has now, or
	// one that it had.
	Ready(ctx context.Context, a *Agent, digest string) error
	// Hold takes room for the snapshot of a guest that gives its place away while it waits for a call;
	// ok is false if there is none.
	Hold(a *Agent, bytes int) (giveBack func(), ok bool)
	// Withdraw ends an approval that an agent waits for no longer, and says why to approvers.
	// It returns within seconds; what fails then is tried again in the background.
	Withdraw(ctx context.Context, a *Agent, approval, reason string)
	// Fault logs a panic of this program in a turn of an agent, with its stack.
	Fault(ctx context.Context, a *Agent, fault any, stack []byte)
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
	// Model is the one that is asked by it; empty for all other calls.
	Model string
	// Tell is told how far the call is. It may be called at any time until the call ends.
	Tell func(string)
}

// ToolResult is what came of a call.
type ToolResult struct {
	// Text is the tool's content as text, Structured its structured content, and IsError
	// whether it says that it failed.
	Text       string         `json:"text"`
	IsError    bool           `json:"is_error"`
	Structured jsontext.Value `json:"structured,omitempty"`
	// Failure is what the gateway says of a call to the mesh's own service that failed.
	Failure Failure `json:"-"`
	// Refused is why there is nothing of that; nil where there is. Ran says that the call was
	// made all the same, or may have been.
	Refused *abi.Error `json:"-"`
	Ran     bool       `json:"-"`
	// Again says that the same call may be made later.
	Again bool `json:"-"`
	// Decision is the gateway's, by its id, and Code why it refused; may be empty.
	Decision string        `json:"-"`
	Code     commonv1.Code `json:"-"`
	// Denied says that policy denies it, or the agent's rights.
	Denied bool `json:"-"`
	// Waits is what the call waits for; nil where it waits for nothing.
	Waits *wasmagentv1.Waiting `json:"-"`
}

// Failure is a gRPC status as the gateway writes it.
type Failure struct {
	// Reason is that of ErrorInfo, in upper case; empty without one. Metadata is of it, too.
	Reason   string            `json:"reason"`
	Metadata map[string]string `json:"metadata"`
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

// left is what is known of an effect from a journal that goes on: that it was sent, and what it
// waits for.
type left struct {
	sent     bool
	approval string
}

var errLeft = errors.New("the process that made the call ended before it had an answer")

// tool calls a tool for a guest.
func (a *Agent) tool(t *turn, out abi.Out) (in abi.In, err error) {
	call := ToolCall{Server: out.Server, Tool: out.Tool, Arguments: out.Arguments, Tell: t.tell}
	if len(call.Arguments) == 0 {
		call.Arguments = []byte("{}")
	}
	if call.Server == a.Host.Server() && call.Tool == AskTool { // its tokens would be counted by nobody
		return abi.In{Kind: abi.Result, Error: &abi.Error{Code: "not_in_manifest", Message: "a model is asked by the effect for that"}}, nil
	}
	return a.call(t, call)
}

// call makes a call for a guest. Before that it stands in the journal. Where people have to
// decide the agent is parked until they have.
func (a *Agent) call(t *turn, call ToolCall) (in abi.In, err error) {
	in = abi.In{Kind: abi.Result}
	a.wait(t, &wasmagentv1.Waiting{WaitingFor: wasmagentv1.WaitingFor_WAITING_FOR_EFFECT})
	defer a.wait(t, nil)
	var result ToolResult
	var lost error // it is not known what came of the call
	giveBack := func() {}
	switch found := t.left; {
	case found.approval != "":
		call.Approval = found.approval
		result.Waits = &wasmagentv1.Waiting{WaitingFor: wasmagentv1.WaitingFor_WAITING_FOR_APPROVAL, ApprovalId: found.approval}
	case found.sent:
		lost = errLeft
	default:
		var refused *abi.Error
		if giveBack, refused, err = a.Host.Allow(t.ctx, a, call); err != nil {
			return in, err
		}
		if refused != nil {
			result = ToolResult{Refused: refused, Denied: true}
			break
		}
		a.effectEvent(t, wasmagentv1.EventKind_EVENT_KIND_SENT)
		if err := a.flush(t.ctx, t.kind()); err != nil {
			return in, err
		}
		if err := a.await(t, func() { result, lost = a.Host.Call(t.ctx, a, call, 0) }); err != nil {
			t.called = true // or it may have been
			return in, err
		}
	}
	if lost == nil && result.Waits != nil {
		call.Approval = result.Waits.GetApprovalId()
		if result, err = a.people(t, call, result.Waits); err != nil {
			return in, err
		}
	}
	t.called = t.called || lost != nil || result.Refused == nil || result.Ran
	if lost == nil && result.Refused != nil && !result.Ran {
		giveBack()
	}
	t.about = &wasmagentv1.Event{DecisionId: result.Decision, Code: result.Code, ApprovalId: call.Approval}
	if result.Denied {
		a.mu.Lock()
		a.usage.denied++
		a.mu.Unlock()
	}
	return a.toGuest(t, call, result, lost)
}

// toGuest returns what the guest gets of a call; lost says that it is not known what came of it.
func (a *Agent) toGuest(t *turn, call ToolCall, result ToolResult, lost error) (in abi.In, err error) {
	in = abi.In{Kind: abi.Result}
	switch {
	case lost != nil:
		if call.Model != "" {
			a.estimate(t, call)
		}
		t.about.Code = commonv1.Code_CODE_OUTCOME_UNKNOWN
		in.Error = &abi.Error{Code: outcomeUnknown, Message: lost.Error()}
		return in, nil
	case result.Denied && a.Rights().Manifest(time.Now()).GetStopOnDenial():
		return in, fmt.Errorf("%w: %s", errDenied, result.Refused.Message)
	case result.Refused != nil:
		if call.Model != "" && result.Ran {
			a.estimate(t, call)
		}
		in.Error = result.Refused
		return in, nil
	case call.Model != "":
		return a.answered(t, result, call), nil
	}
	if in.Result, err = json.Marshal(result); err == nil && len(in.Result) > 4*maxResult {
		in.Result, in.Error = nil, &abi.Error{Code: Code(errLarge), Message: "the call was made, and its answer has more than 1 MiB"}
	}
	return in, err
}

// people waits until people have decided on a call. Whoever prompted need not wait, and the end
// of this process ends nothing: the guest gives its place to others, and the turn goes on alone.
func (a *Agent) people(t *turn, call ToolCall, waits *wasmagentv1.Waiting) (result ToolResult, err error) {
	t.tell("waits for people to decide on " + call.Tool + ": approval " + call.Approval)
	t.approval = call.Approval
	if !t.alone && !t.follow() {
		<-t.caller.Done()
		return result, errCancelled // nobody waits for it any more
	}
	goesOn := t.left.approval != ""
	if !goesOn {
		t.about = &wasmagentv1.Event{ApprovalId: call.Approval, DecisionId: waits.GetDecisionId()}
		a.effectEvent(t, wasmagentv1.EventKind_EVENT_KIND_PARKED)
		if err := a.flush(t.ctx, store.Alone); err != nil {
			return result, err
		}
	}
	a.wait(t, waits)
	if !t.alone {
		t.alone = true
		close(t.parked)
	}
	err = a.park(t, func() (err error) {
		if result, err = a.decided(t, call, goesOn); err == nil {
			t.approval = ""
		}
		t.called = t.called || err == nil && (result.Refused == nil || result.Ran)
		return err
	})
	return result, err
}

// decided waits until people have decided on a call, and returns what came of it then. It asks
// again, under the approval, until that has run its course: then it is refused for good. lost
// says that an answer may have been lost before.
func (a *Agent) decided(t *turn, call ToolCall, lost bool) (ToolResult, error) {
	for {
		begin := time.Now()
		result, err := a.Host.Call(t.ctx, a, call, held)
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
