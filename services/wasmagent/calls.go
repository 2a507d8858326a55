package wasmagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/abi"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/manifest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

// maxCallTime is the timeout of one call, including the time during which the call waits for an approval.
const maxCallTime = 30 * time.Minute

// host implements [agent.Host].
type host struct{ *Service }

// Allow implements [agent.Host]. It allows a call only if the agent and every agent in the delegation chain have the
// right to make the call. It also counts the call, unless the call is a question to a model.
func (h host) Allow(ctx context.Context, a *agent.Agent, call agent.ToolCall) (giveBack func(), refused *abi.Error, err error) {
	lineage, err := h.lineage(ctx, a)
	if err != nil {
		return nil, nil, err
	}
	if slices.Contains(lineage, nil) {
		return func() {}, creatorGoneError(), nil
	}
	giveBack = func() {}
	if call.Model != "" {
		err = agent.CheckModelRights(ctx, h.store, lineage, call.Model, h.models.HasPrice(call.Model))
	} else {
		giveBack, err = agent.CountCall(ctx, h.store, lineage, call)
	}
	if errors.Is(err, manifest.ErrNotAllowed) || errors.Is(err, manifest.ErrSpent) {
		return func() {}, &abi.Error{Code: "not_in_manifest", Message: err.Error()}, nil
	}
	return giveBack, nil, err
}

// recheckRights checks the rights for a call again after the call's approval, because the rights may have changed while
// the call waited. It returns nil if the agent and every agent in the delegation chain still have the right to make the
// call. Otherwise it returns the error for the guest.
func (h host) recheckRights(ctx context.Context, a *agent.Agent, call agent.ToolCall) (*abi.Error, error) {
	lineage, err := h.lineage(ctx, a)
	if err != nil {
		return nil, err
	}
	for _, member := range lineage {
		if member == nil {
			return creatorGoneError(), nil
		}
		if call.Model != "" {
			_, err = member.Rights().MatchModel(call.Model, time.Now())
		} else {
			_, err = member.Rights().MatchTool(call.Server, call.Tool, call.Arguments, time.Now())
		}
		if err != nil {
			return &abi.Error{Code: "not_in_manifest", Message: err.Error()}, nil //nolint:nilerr // err is the refusal
		}
	}
	return nil, nil //nolint:nilnil // both are nil if the call is allowed
}

func creatorGoneError() *abi.Error {
	return &abi.Error{Code: "creator_gone", Message: "an agent in the chain of this agent has ended, so the rights from that agent have ended, too"}
}

// CountModelUse implements [agent.Host].
func (h host) CountModelUse(ctx context.Context, a *agent.Agent, call agent.ToolCall, tokens, nanos int64) {
	lineage, err := h.lineage(ctx, a)
	if err == nil {
		lineage = slices.DeleteFunc(lineage, func(member *agent.Agent) bool { return member == nil })
		err = agent.CountModelUse(context.WithoutCancel(ctx), h.store, lineage, call.Model, tokens, nanos)
	}
	if err != nil {
		h.log.WarnContext(ctx, "the use of a model can't be counted", "agent", a.ID, "model", call.Model, "tokens", tokens, "error", err)
	}
}

// Call implements [agent.Host]. It makes the call through the gateway.
func (h host) Call(ctx context.Context, a *agent.Agent, call agent.ToolCall, pollTime time.Duration) (agent.ToolResult, error) {
	if call.ApprovalID != "" { // rights may have been withdrawn since the approval was requested
		refused, err := h.recheckRights(ctx, a, call)
		if refused != nil {
			h.WithdrawApproval(ctx, a, call.ApprovalID, agent.WithdrawalReason(refused.Message))
		}
		if refused != nil || err != nil {
			return agent.ToolResult{Refused: refused, IsDenied: refused != nil}, err
		}
	}
	ctx, cancel := context.WithTimeout(authn.OnBehalfOf(ctx, a.Principal()), maxCallTime)
	defer cancel()
	answer, err := h.callGateway(ctx, call.Progress, &gatewayv1.CallToolRequest{
		Server: call.Server, Tool: call.Tool, ArgumentsJson: string(call.Arguments), ApprovalId: call.ApprovalID, Hold: durationpb.New(pollTime),
	})
	if refused := notSentReason(err); refused != nil {
		return agent.ToolResult{Refused: refused, Retryable: status.Code(err) == codes.ResourceExhausted}, nil
	}
	if err != nil {
		if ctx.Err() == nil && call.ApprovalID == "" { // a call that waits for an approval is retried
			h.log.WarnContext(ctx, "an agent's call failed without an answer", "agent", a.ID, "server", call.Server, "tool", call.Tool, "error", err)
		}
		return agent.ToolResult{}, errors.New("the outcome of the call is not known")
	}
	out := toolResult(answer)
	out.DecisionID, out.Code = answer.GetDecision().GetId(), answer.GetDecision().GetCode()
	return out, nil
}

// LogPanic implements [agent.Host].
func (h host) LogPanic(ctx context.Context, a *agent.Agent, fault any, stack []byte) {
	h.log.ErrorContext(ctx, "a turn of an agent panicked", "agent", a.ID, "panic", fmt.Sprint(fault), "stack", string(stack))
}

// DetachedTurnEnded implements [agent.Host].
func (h host) DetachedTurnEnded(ctx context.Context, a *agent.Agent, err error) {
	if err != nil {
		h.log.WarnContext(ctx, "a prompt that continued without its caller failed", "agent", a.ID, "error", err)
	}
}

// lineage returns an agent, followed by the agents in its delegation chain. The element for an agent that has ended or
// no longer exists is nil.
func (s *Service) lineage(ctx context.Context, a *agent.Agent) ([]*agent.Agent, error) {
	out := []*agent.Agent{a}
	for _, member := range a.Principal().GetChain() {
		id, ok := strings.CutPrefix(member.GetSubject(), agent.Subject(member.GetTenant(), ""))
		if !ok {
			continue
		}
		found, err := s.agents.get(ctx, id)
		switch {
		case errors.Is(err, store.ErrUnknown):
			out = append(out, nil)
		case err != nil:
			return nil, err
		case found.HasEnded():
			out = append(out, nil)
		default:
			out = append(out, found)
		}
	}
	return out, nil
}

func (h host) callGateway(ctx context.Context, progress func(string), req *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
	stream, err := h.gateway.CallTool(ctx, req, grpc.WaitForReady(false)) // fail immediately if the gateway is unavailable
	if err != nil {
		return nil, err
	}
	for {
		resp, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		case resp.GetAnswer() != nil:
			return resp.GetAnswer(), nil
		case resp.GetProgress().GetMessage() != "" && progress != nil:
			progress(resp.GetProgress().GetMessage())
		}
	}
}

// notSentReason returns the reason why a call was certainly not sent. It returns nil if the call may have been sent. A
// status without a reason does not come from the gateway, so the call may have been sent. The reason TOO_MUCH can mean
// that the answer was too large, so the call may have been sent in this case, too.
func notSentReason(err error) *abi.Error {
	reason := rpc.Reason(err)
	if reason == "" || reason == "TOO_MUCH" {
		return nil
	}
	switch status.Code(err) { //nolint:exhaustive // with every other code the call may have been sent
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated, codes.ResourceExhausted, codes.FailedPrecondition:
		return &abi.Error{Code: strings.ToLower(reason), Message: status.Convert(err).Message()}
	}
	return nil
}

func toolResult(answer *gatewayv1.ToolAnswer) agent.ToolResult {
	d := answer.GetDecision()
	if d.GetCode() != commonv1.Code_CODE_UNSPECIFIED {
		out := agent.ToolResult{
			Refused:  &abi.Error{Code: enum.NameOrEmpty(d.GetCode()), Message: d.GetMessage()},
			IsDenied: d.GetEffect() == policyv1.Effect_EFFECT_DENY && !d.GetRetryable(), Retryable: d.GetRetryable(),
		}
		switch d.GetCode() { //nolint:exhaustive // with every other code, the call was not sent and does not wait
		case commonv1.Code_CODE_UPSTREAM_TIMEOUT, commonv1.Code_CODE_OUTCOME_UNKNOWN:
			out.HasRun, out.IsDenied = true, false
		case commonv1.Code_CODE_APPROVAL_PENDING, commonv1.Code_CODE_APPROVAL_REQUIRED:
			if d.GetApproval().GetId() == "" {
				break
			}
			out.IsDenied = false
			out.Waiting = &wasmagentv1.Waiting{WaitingFor: wasmagentv1.WaitingFor_WAITING_FOR_APPROVAL, ApprovalId: d.GetApproval().GetId(), DecisionId: d.GetId()}
		}
		return out
	}
	if answer.GetTooLarge() {
		return agent.ToolResult{Refused: &abi.Error{Code: "too_large", Message: "the call was made, but its answer is too large"}, HasRun: true}
	}
	var parsed struct {
		Content []struct {
			Type string `json:"type"`
			Text string `json:"text"`
		} `json:"content"`
		Structured jsontext.Value `json:"structuredContent"`
		Meta       struct {
			Status agent.Failure `json:"io.grpc/status"`
		} `json:"_meta"`
	}
	if err := json.Unmarshal([]byte(answer.GetResultJson()), &parsed); err != nil {
		return agent.ToolResult{Refused: &abi.Error{Code: "outcome_unknown", Message: fmt.Sprintf("the call was made, but its answer is not a tool result: %s", abi.JSONError(err))}, HasRun: true}
	}
	var texts []string
	for _, part := range parsed.Content {
		if part.Type == "text" {
			texts = append(texts, part.Text)
		}
	}
	return agent.ToolResult{Text: strings.Join(texts, "\n"), IsError: answer.GetIsError(), Structured: parsed.Structured, Failure: parsed.Meta.Status}
}
