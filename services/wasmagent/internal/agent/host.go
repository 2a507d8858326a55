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

// A Host connects agents to the wasmagent service and, through that service, to the gateway. It is safe for concurrent
// use.
type Host interface {
	// Allow counts a call against the rights of an agent and of the agents in its delegation chain. giveBack reverses
	// the count. If the call is a question to a model, Allow only checks the rights, because CountModelUse counts the
	// question. If the rights do not allow the call, refused is the reason. If the rights could not be checked, Allow
	// returns an error.
	Allow(ctx context.Context, a *Agent, call ToolCall) (giveBack func(), refused *abi.Error, err error)
	// Call calls a tool on behalf of an agent, if the policy allows the call. If the call needs an approval, Call waits
	// for the decision for at most pollTime. If Call returns an error, the outcome of the call is unknown.
	Call(ctx context.Context, a *Agent, call ToolCall, pollTime time.Duration) (ToolResult, error)
	// Model returns the name of the model for an agent's question. asked is the name that the guest has given. If asked is
	// empty, Model returns the agent's default model. ok is false if no provider is configured for the model.
	Model(a *Agent, asked string) (name string, ok bool)
	// Server returns the name of the server that has the tool [AskTool], or an empty string if there is no such server.
	Server() string
	// CountModelUse counts the tokens and the cost of a question to a model against the rights of an agent and of the
	// agents in its delegation chain. nanos is the cost in billionths of a US dollar.
	CountModelUse(ctx context.Context, a *Agent, call ToolCall, tokens, nanos int64)
	// Tools returns the tools on servers that an agent may call.
	Tools(ctx context.Context, a *Agent) ([]ToolInfo, error)
	// AcquireSlot waits for a slot in which a guest can run. leave releases the slot. hadSlot is true if the turn had a
	// slot before. Such a turn takes precedence over other turns, and waits until ctx is done. AcquireSlot returns
	// [ErrPromptsFull] or the error of ctx.
	AcquireSlot(ctx context.Context, a *Agent, hadSlot bool) (leave func(), err error)
	// EnsureModule makes sure that a module of the agent's guest is compiled. digest is the digest of the guest's current
	// module or of an earlier module.
	EnsureModule(ctx context.Context, a *Agent, digest string) error
	// ReserveSnapshot reserves memory for the snapshot of a guest that releases its slot while it waits for a call.
	// giveBack releases the memory. ok is false if there is not enough memory for the snapshot.
	ReserveSnapshot(a *Agent, bytes int) (giveBack func(), ok bool)
	// WithdrawApproval cancels an approval for which an agent no longer waits. Approvers can read the reason.
	// WithdrawApproval returns within seconds, and retries in the background if the cancellation fails.
	WithdrawApproval(ctx context.Context, a *Agent, approval, reason string)
	// LogPanic logs a panic of this program during a turn of an agent. stack is the stack of the goroutine that
	// panicked.
	LogPanic(ctx context.Context, a *Agent, fault any, stack []byte)
	// DetachedTurnEnded is called at the end of a turn that continued without its caller. err is nil if the turn
	// succeeded.
	DetachedTurnEnded(ctx context.Context, a *Agent, err error)
}

// ToolCall is a tool call that a guest requests.
type ToolCall struct {
	Server, Tool string
	// Arguments is a JSON object.
	Arguments []byte
	// ApprovalID is the id of the call's approval. It is empty if the call does not wait for an approval yet.
	ApprovalID string
	// Model is the name of the model if the call is a question to a model, and otherwise empty.
	Model string
	// Progress receives progress messages until the call ends. It may be called from another goroutine.
	Progress func(string)
}

// ToolResult is the result of a call.
type ToolResult struct {
	// Text contains the text parts of the tool's content. Structured contains the structured content. IsError is true
	// if the tool has reported an error.
	Text       string         `json:"text"`
	IsError    bool           `json:"is_error"`
	Structured jsontext.Value `json:"structured,omitempty"`
	// Failure is the status that the gateway has returned, if the tool belongs to a service of the mesh and the call
	// failed.
	Failure Failure `json:"-"`
	// Refused is the reason why there is no result, or nil if there is a result. HasRun is true if there is no result
	// although the call ran or may have run.
	Refused *abi.Error `json:"-"`
	HasRun  bool       `json:"-"`
	// Retryable is true if the same call may succeed later.
	Retryable bool `json:"-"`
	// DecisionID is the id of the gateway's decision on the call. Code is the refusal code if the gateway has refused the
	// call. Both fields can be empty.
	DecisionID string        `json:"-"`
	Code       commonv1.Code `json:"-"`
	// IsDenied is true if the policy or the agent's rights deny the call.
	IsDenied bool `json:"-"`
	// Waiting describes the approval for which the call waits. It is nil if the call does not wait.
	Waiting *wasmagentv1.Waiting `json:"-"`
}

// Failure is a gRPC status in the JSON form that the gateway uses.
type Failure struct {
	// Reason and Metadata are the fields of the google.rpc.ErrorInfo in the status. They are empty if the status has no
	// ErrorInfo.
	Reason   string            `json:"reason"`
	Metadata map[string]string `json:"metadata"`
}

const (
	// approvalPollTime limits how long one request to the host waits for an approval.
	approvalPollTime = 10 * time.Minute
	// minPollInterval is the shortest time between two requests to the host for the same call.
	minPollInterval = time.Second
	// maxRestores limits how often the package tries to restore a guest when workers fail.
	maxRestores = 5
)

// outcomeUnknown is the error code that a guest receives for a call that may or may not have run.
var outcomeUnknown = enum.Name(commonv1.Code_CODE_OUTCOME_UNKNOWN)

// ErrCallsStopped means that a prompt was undone because it made a call of a kind that an operator has stopped. The
// agent itself is not stopped and still accepts prompts. The prompt can succeed after an operator has resumed the
// calls.
var ErrCallsStopped = errors.New("the prompt has ended at a call that was refused, and the agent is as before the prompt")

// earlierCalls returns a text about the calls that a turn made before it ended. It returns "" if there were none.
func (t *turn) earlierCalls() string {
	if !t.madeCalls {
		return ""
	}
	return " (calls that the prompt has made before are in the agent's journal: sluice agents events)"
}

var errDenied = errors.New("policy denied a call, and the agent's manifest has stop_on_denial")

// Principal returns the principal of the agent's calls, including its delegation chain.
func (s *Spec) Principal() *identityv1.Principal {
	p := &identityv1.Principal{
		Tenant: s.Creator.GetTenant(), Subject: Subject(s.Creator.GetTenant(), s.ID), Agent: s.Guest,
		Owner: principal.Person(s.Creator).Subject, Person: principal.ActsFor(s.Creator).Subject, Role: authv1.TokenRole_TOKEN_ROLE_AGENT,
	}
	if s.Creator.GetRole() != authv1.TokenRole_TOKEN_ROLE_AGENT { // a person is the owner, and is not in the chain
		return p
	}
	direct := &identityv1.Principal{
		Tenant: s.Creator.GetTenant(), Subject: s.Creator.GetSubject(), Agent: s.Creator.GetAgent(), Owner: s.Creator.GetOwner(), Person: s.Creator.GetPerson(),
		Groups: s.Creator.GetGroups(), Role: s.Creator.GetRole(), TokenId: s.Creator.GetTokenId(), TokenCreated: s.Creator.GetTokenCreated(),
		TokenCreatedBy: s.Creator.GetTokenCreatedBy(), Issuer: s.Creator.GetIssuer(), Client: s.Creator.GetClient(),
		Scopes: s.Creator.GetScopes(), Servers: s.Creator.GetServers(), Actor: s.Creator.GetActor(),
	}
	p.Chain = append([]*identityv1.Principal{direct}, s.Creator.GetChain()...)
	return p
}

// Subject returns the subject of the agent with the given id.
func Subject(tenant, id string) string { return "agent:" + tenant + "/" + id }

// interruptedCall describes an effect that, according to the journal, was interrupted when the process exited. sent is
// true if the call was sent. approval is the id of the approval for which the call waits, or empty.
type interruptedCall struct {
	sent     bool
	approval string
}

var errCallInterrupted = errors.New("the process that made the call ended before it got the answer")

func (a *Agent) callTool(t *turn, envelope abi.GuestEnvelope) (in abi.HostEnvelope, err error) {
	call := ToolCall{Server: envelope.Server, Tool: envelope.Tool, Arguments: envelope.Arguments, Progress: t.progress}
	if len(call.Arguments) == 0 {
		call.Arguments = []byte("{}")
	}
	if call.Server == a.Host.Server() && call.Tool == AskTool { // a direct call would bypass the token count
		return abi.HostEnvelope{Kind: abi.Result, Error: &abi.Error{Code: "not_in_manifest", Message: "use the effect model to ask a model"}}, nil
	}
	return a.makeCall(t, call)
}

// makeCall makes a call for a guest. It records the call in the journal before it sends the call. If the call needs an
// approval, the turn waits for the decision.
func (a *Agent) makeCall(t *turn, call ToolCall) (in abi.HostEnvelope, err error) {
	in = abi.HostEnvelope{Kind: abi.Result}
	a.setWaiting(t, &wasmagentv1.Waiting{WaitingFor: wasmagentv1.WaitingFor_WAITING_FOR_EFFECT})
	defer a.setWaiting(t, nil)
	var result ToolResult
	var lostErr error // set if the outcome of the call is unknown
	giveBack := func() {}
	switch found := t.interrupted; {
	case found.approval != "":
		call.ApprovalID = found.approval
		result.Waiting = &wasmagentv1.Waiting{WaitingFor: wasmagentv1.WaitingFor_WAITING_FOR_APPROVAL, ApprovalId: found.approval}
	case found.sent:
		lostErr = errCallInterrupted
	default:
		var refused *abi.Error
		if giveBack, refused, err = a.Host.Allow(t.ctx, a, call); err != nil {
			return in, err
		}
		if refused != nil {
			result = ToolResult{Refused: refused, IsDenied: true}
			break
		}
		a.recordEffectEvent(t, wasmagentv1.EventKind_EVENT_KIND_SENT)
		if err := a.flushEvents(t.ctx, t.storeTurn()); err != nil {
			return in, err
		}
		if err := a.awaitCall(t, func() { result, lostErr = a.Host.Call(t.ctx, a, call, 0) }); err != nil {
			t.madeCalls = true // the call may have run
			return in, err
		}
	}
	if lostErr == nil && result.Waiting != nil {
		call.ApprovalID = result.Waiting.GetApprovalId()
		if result, err = a.awaitApproval(t, call, result.Waiting); err != nil {
			return in, err
		}
	}
	t.madeCalls = t.madeCalls || lostErr != nil || result.Refused == nil || result.HasRun
	if lostErr == nil && result.Refused != nil && !result.HasRun {
		giveBack()
	}
	t.eventContext = &wasmagentv1.Event{DecisionId: result.DecisionID, Code: result.Code, ApprovalId: call.ApprovalID}
	if result.IsDenied {
		a.mu.Lock()
		a.usage.denied++
		a.mu.Unlock()
	}
	return a.guestResult(t, call, result, lostErr)
}

// guestResult converts the result of a call to the envelope for the guest. If the outcome of the call is unknown,
// lostErr is the error, and otherwise it is nil.
func (a *Agent) guestResult(t *turn, call ToolCall, result ToolResult, lostErr error) (in abi.HostEnvelope, err error) {
	in = abi.HostEnvelope{Kind: abi.Result}
	switch {
	case result.Code == commonv1.Code_CODE_STOPPED && lostErr == nil:
		return in, fmt.Errorf("%w%s: %s", ErrCallsStopped, t.earlierCalls(), result.Refused.Message)
	case lostErr != nil:
		if call.Model != "" {
			a.countEstimate(t, call)
		}
		t.eventContext.Code = commonv1.Code_CODE_OUTCOME_UNKNOWN
		in.Error = &abi.Error{Code: outcomeUnknown, Message: lostErr.Error()}
		return in, nil
	case result.IsDenied && a.Rights().Union(time.Now()).GetStopOnDenial():
		return in, fmt.Errorf("%w: %s", errDenied, result.Refused.Message)
	case result.Refused != nil:
		if call.Model != "" && result.HasRun {
			a.countEstimate(t, call)
		}
		in.Error = result.Refused
		return in, nil
	case call.Model != "":
		return a.modelResult(t, result, call), nil
	}
	if in.Result, err = json.Marshal(result); err == nil && len(in.Result) > 4*maxResultBytes {
		in.Result, in.Error = nil, &abi.Error{Code: GuestErrorCode(errResultTooLarge), Message: "the call was made, but its answer has more than 1 MiB"}
	}
	return in, err
}

// awaitApproval waits for the decision on an approval. During the wait, the guest releases its slot, and the turn no
// longer needs its caller. The turn continues even if this process exits.
func (a *Agent) awaitApproval(t *turn, call ToolCall, waiting *wasmagentv1.Waiting) (result ToolResult, err error) {
	t.progress("waits for a decision on " + call.Tool + ": approval " + call.ApprovalID)
	t.approval = call.ApprovalID
	if !t.detached && !t.unfollow() {
		<-t.callerCtx.Done()
		return result, errCancelled // the caller gave up
	}
	isContinued := t.interrupted.approval != ""
	if !isContinued {
		t.eventContext = &wasmagentv1.Event{ApprovalId: call.ApprovalID, DecisionId: waiting.GetDecisionId()}
		a.recordEffectEvent(t, wasmagentv1.EventKind_EVENT_KIND_PARKED)
		if err := a.flushEvents(t.ctx, store.DetachedTurn); err != nil {
			return result, err
		}
	}
	a.setWaiting(t, waiting)
	if !t.detached {
		t.detached = true
		close(t.parked)
	}
	err = a.parkTurn(t, func() (err error) {
		if result, err = a.pollApproval(t, call, isContinued); err == nil {
			t.approval = ""
		}
		t.madeCalls = t.madeCalls || err == nil && (result.Refused == nil || result.HasRun)
		return err
	})
	return result, err
}

// mayHaveRun reports whether the refusal of a repeated call can mean that the call has already run and only its answer
// was lost. code is the code of the refusal. This is possible if the approval was used. It is also possible if the
// policy allowed the call without the approval, because the approval is then cancelled.
func mayHaveRun(code string) bool {
	return code == enum.Name(commonv1.Code_CODE_APPROVAL_USED) || code == enum.Name(commonv1.Code_CODE_APPROVAL_EXPIRED)
}

// pollApproval waits for the decision on an approval and returns the result of the call. It repeats the request until
// the result is final. mayBeLost is true if an earlier answer to the call may have been lost.
func (a *Agent) pollApproval(t *turn, call ToolCall, mayBeLost bool) (ToolResult, error) {
	for {
		begin := time.Now()
		result, err := a.Host.Call(t.ctx, a, call, approvalPollTime)
		switch {
		case err != nil:
			mayBeLost = true
		case result.Waiting.GetApprovalId() == call.ApprovalID, result.Retryable && !result.HasRun:
		case mayBeLost && result.Refused != nil && mayHaveRun(result.Refused.Code):
			return ToolResult{Refused: &abi.Error{Code: outcomeUnknown, Message: "the call was made, but its answer was lost"}, HasRun: true}, nil
		default:
			return result, nil
		}
		select {
		case <-time.After(max(0, minPollInterval-time.Since(begin))):
		case <-t.ctx.Done():
			return ToolResult{}, t.ctx.Err()
		}
	}
}
