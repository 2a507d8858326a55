package dispatch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/question"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// CheckInputRequests checks the requests to the client in a server's answer. Two kinds of answers contain requests. One
// is a result of revision 2026-07-28 (Multi Round-Trip Requests). The other is an error of revision 2025-11-25 that
// requires the user to open a URL first (Elicitation, URL Mode). The policy service evaluates each request as a request
// from the server, and the decision is recorded.
//
// If a request is denied, or if the answer must not contain requests, the client does not receive the answer. Without
// the requests, the client could not continue. The refusal says that the outcome is unknown, because the server may
// have executed a part of the call. CheckInputRequests checks the answers of all revisions and methods, because a
// client might act on requests in any answer.
func (x *Exchange) CheckInputRequests(ctx context.Context, answer *jsonrpc.Answer) *refusal.Refusal {
	in := answer.InputRequests
	asks := in.Present() && string(in.Of(answer.Raw)) != "null"
	if !asks && !upstream.HasCode(answer, mcp.CodeElicitation) {
		return nil
	}
	why := x.checkInputRequests(ctx, answer, asks)
	if why == nil {
		return nil
	}
	return &refusal.Refusal{ID: why.ID, Code: commonv1.Code_CODE_OUTCOME_UNKNOWN, Message: "the server has received the request, and its answer has a request for the client that is not allowed (" + enum.NameOrEmpty(why.Code) + "); whether it has done anything is not known."}
}

// checkInputRequests returns the refusal for the first request that is not allowed, or nil if all requests are allowed.
func (x *Exchange) checkInputRequests(ctx context.Context, answer *jsonrpc.Answer, asks bool) *refusal.Refusal {
	may := x.Session != nil
	if asks {
		may = x.AsksInAnswers
	}
	if !may {
		return x.refuseServerRequest(ctx, "", commonv1.Code_CODE_METHOD_INVALID, "the server sends a request to the client where MCP allows none.")
	}
	end, err := x.Slot.Answer.TimesliceFor(ctx, len(answer.Raw))
	if err != nil {
		return x.refuseServerRequest(ctx, "", commonv1.Code_CODE_ABUSE_LIMITED, err.Error()+".")
	}
	asked, ok := x.readInputRequests(answer, asks)
	end()
	if !ok {
		return x.refuseServerRequest(ctx, "", commonv1.Code_CODE_METHOD_INVALID, "the server's answer has requests for the client that are not valid in MCP.")
	}
	for _, m := range asked {
		if why := x.checkServerRequest(m); why != nil {
			return x.refuseServerRequest(ctx, m.Method, why.Code, why.Detail+".")
		}
	}
	for _, m := range asked {
		if refused := x.countAndDecide(ctx, m, asks); refused != nil {
			return refused
		}
	}
	return nil
}

// countAndDecide counts a request in an answer as a request from the server, and asks the policy service to evaluate
// it. answeredLater is true if the client will respond to the request in its next message.
func (x *Exchange) countAndDecide(ctx context.Context, m *jsonrpc.Message, answeredLater bool) *refusal.Refusal {
	counted, err := x.Session.ClientRequests.AddFromServer(m.ID.Of(m.Raw))
	if err != nil {
		return x.refuseServerRequest(ctx, m.Method, commonv1.Code_CODE_ABUSE_LIMITED, "of the server's requests, "+err.Error()+".")
	}
	counted.Close() // the client responds in its next request
	return x.decide(ctx, m, &attempt.Call{FromServer: true, AnsweredLater: answeredLater})
}

// DecideServerRequest asks the policy service to evaluate a request from a server to a client of revision 2026-07-28.
// The server supports only revisions with sessions. DecideServerRequest returns nil if the request is allowed.
// Otherwise, it returns the gateway's response to the server. id is the raw id of the request, which the server has
// chosen.
func (x *Exchange) DecideServerRequest(ctx context.Context, id, raw []byte) *upstream.GatewayMessage {
	m, err := jsonrpc.Parse(raw, x.Deps.Limits)
	var why *refusal.Refusal
	switch own, is := errors.AsType[*jsonrpc.Error](err); {
	case is:
		why = x.refuseServerRequest(ctx, "", own.Code, own.Detail+".")
	case err != nil:
		why = x.refuseServerRequest(ctx, "", commonv1.Code_CODE_JSON_INVALID, err.Error()+".")
	case !mcp.IsMultiRound(x.Message.Method):
		why = x.refuseServerRequest(ctx, m.Method, commonv1.Code_CODE_METHOD_INVALID, "the server sends a request to the client where MCP allows none.")
	default:
		if refused := x.checkServerRequest(m); refused != nil {
			code, text := errorForInvalid(refused, x.refuseServerRequest(ctx, m.Method, refused.Code, refused.Detail+"."))
			return new(upstream.Refused(id, code, text))
		}
		why = x.countAndDecide(ctx, m, true)
	}
	if why == nil {
		return nil
	}
	code, text := errorForRefusal(why)
	return new(upstream.Refused(id, code, text))
}

// checkServerRequest returns the reason why an answer must not contain the request, or nil if the answer may contain
// it. Requests that MCP extensions define are not allowed in answers.
func (x *Exchange) checkServerRequest(m *jsonrpc.Message) *question.Error {
	if !mcp.AsksClient(m.Method) {
		return &question.Error{Code: commonv1.Code_CODE_METHOD_DENIED, Method: true, Detail: "the method is not one that MCP lets servers send to clients"}
	}
	return x.Offer.Check(m)
}

// readInputRequests returns the requests in an answer, with ids from the gateway. It returns false if the requests are
// ambiguous.
func (x *Exchange) readInputRequests(answer *jsonrpc.Answer, asks bool) (out []*jsonrpc.Message, ok bool) {
	var requests [][]byte
	if asks {
		for _, in := range answer.Inputs {
			requests = append(requests, in.Request(answer.Raw, inputID()))
		}
		ok = answer.Raw[answer.InputRequests.Start] == '{'
	} else {
		var fields struct {
			Data struct {
				Elicitations []jsontext.Value `json:"elicitations"`
			} `json:"data"`
		}
		// Some JSON parsers ignore the case of keys. Therefore, an object with two keys that differ only in case is refused.
		err := json.Unmarshal(answer.Error.Of(answer.Raw), &fields, json.MatchCaseInsensitiveNames(true))
		for _, params := range fields.Data.Elicitations {
			if !isURLMode(params) {
				return nil, false
			}
			requests = append(requests, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}`, inputID(), mcp.MethodElicit, params))
		}
		ok = err == nil && 0 < len(requests) && len(requests) <= maxElicitations
	}
	for _, raw := range requests {
		m, err := jsonrpc.Parse(raw, x.Deps.Limits)
		if err != nil {
			return nil, false
		}
		out = append(out, m)
	}
	return out, ok
}

// isURLMode reports whether an elicitation is in URL mode. MCP allows no other mode in an error.
func isURLMode(params []byte) bool {
	var fields struct {
		Mode string `json:"mode"`
	}
	return json.Unmarshal(params, &fields) == nil && fields.Mode == "url"
}

// maxElicitations is the maximum number of URLs in one answer that the user should open. It is limited because the
// policy service evaluates each URL separately.
const maxElicitations = 100

// inputID returns an unguessable request id as raw JSON.
func inputID() []byte { return []byte(`"` + inputIDPrefix + rand.Text() + `"`) }

const inputIDPrefix = "sluice-"

func (x *Exchange) refuseServerRequest(ctx context.Context, method string, code commonv1.Code, why string) *refusal.Refusal {
	out := &refusal.Refusal{Code: code, Message: why}
	out.ID = x.Deps.Pipeline.RecordRefusal(ctx, attempt.RefusedRequest{
		Principal: x.ActingPrincipal(), Server: x.ServerName, Method: method, Code: code, Message: why, FromServer: true,
	})
	return out
}

// UnusableAnswer returns the refusal for a request if the server has executed the request but the client must not
// receive the answer.
func (x *Exchange) UnusableAnswer(ctx context.Context, why string) *refusal.Refusal {
	recorded := x.refuseServerRequest(ctx, "", commonv1.Code_CODE_METHOD_INVALID, why)
	return &refusal.Refusal{ID: recorded.ID, Code: commonv1.Code_CODE_OUTCOME_UNKNOWN, Message: why}
}

// Decide asks the policy service to evaluate a request that is part of another message, and records the decision. It
// returns nil if the request is allowed.
func (x *Exchange) Decide(ctx context.Context, m *jsonrpc.Message, fromServer bool) *refusal.Refusal {
	return x.decide(ctx, m, &attempt.Call{FromServer: fromServer})
}

// decide is like [Exchange.Decide], but the caller has already set some fields of call. decide sets the other fields.
func (x *Exchange) decide(ctx context.Context, m *jsonrpc.Message, call *attempt.Call) *refusal.Refusal {
	memory := x.Slot.Answer.Sibling()
	defer memory.Close()
	call.Principal, call.Stale, call.Credential = x.ActingPrincipal(), x.Stale || x.Revoked(ctx), x.Credential
	call.Server, call.Message, call.Received, call.Timeout = x.ServerName, m, time.Now(), x.Timeout
	call.Transport, call.Version, call.Client = x.Server.Upstream.Transport(), x.Session.Version, x.ClientName
	call.Upstream, call.Memory, call.Identity = discardForwarder{}, memory, x.Server.Identity
	return x.Deps.Pipeline.Do(ctx, call).Refusal
}

// discardForwarder is the forwarder for a request that is part of another message. It sends nothing, because the other
// message contains the request.
type discardForwarder struct{}

// Forward implements [attempt.Forwarder].
func (discardForwarder) Forward(_ context.Context, req upstream.Request, _ func([]byte)) (upstream.Answer, error) {
	if err := req.MayBegin(); err != nil { // the permit may have expired, because the pipeline may have waited for the limiter or the journal
		return upstream.Answer{}, err
	}
	answer, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":0,"result":{}}`), jsonrpc.AnswerLimits())
	return upstream.Answer{Message: answer}, err
}
