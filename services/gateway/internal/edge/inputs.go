package edge

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
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/question"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// inputs has policy decide on what a server's answer asks of the client: in a result of 2026-07-28
// (Multi Round-Trip Requests), and in the error by which 2025-11-25 wants an address opened first
// (Elicitation, URL Mode). Each is judged as a request of the server's own, on record. Where one
// may not be asked, or the answer is one that asks nothing, it does not go on, for the request
// can't be carried out without it; what the server has done by then is not known. A client may act
// on what is asked in whatever revision, and in answers to whatever method.
func (x *exchange) inputs(ctx context.Context, answer *gate.Answer) *refusal.Refusal {
	in := answer.InputRequests
	asks := in.Present() && string(in.Of(answer.Raw)) != "null"
	if !asks && !upstream.HasCode(answer, mcp.CodeElicitation) {
		return nil
	}
	why := x.unasked(ctx, answer, asks)
	if why == nil {
		return nil
	}
	return &refusal.Refusal{ID: why.ID, Code: commonv1.Code_CODE_OUTCOME_UNKNOWN, Message: "the server has got the request, and asks what may not be asked (" + enum.Given(why.Code) + "); whether it has done anything is not known."}
}

// unasked is why something of what an answer asks may not be asked; nil where all may.
func (x *exchange) unasked(ctx context.Context, answer *gate.Answer, asks bool) *refusal.Refusal {
	may := x.sess != nil
	if asks {
		may = x.asksInAnswers
	}
	if !may {
		return x.refuseAsked(ctx, "", commonv1.Code_CODE_METHOD_INVALID, "the server asks the client where MCP has no questions.")
	}
	end, err := x.has.Answer.TurnFor(ctx, len(answer.Raw))
	if err != nil {
		return x.refuseAsked(ctx, "", commonv1.Code_CODE_ABUSE_LIMITED, err.Error()+".")
	}
	asked, ok := x.readInputs(answer, asks)
	end()
	if !ok {
		return x.refuseAsked(ctx, "", commonv1.Code_CODE_METHOD_INVALID, "the server asks the client in a way that MCP does not have.")
	}
	for _, m := range asked {
		if why := x.mayBeAsked(m); why != nil {
			return x.refuseAsked(ctx, m.Method, why.Code, why.Detail+".")
		}
	}
	for _, m := range asked {
		if refused := x.decide(ctx, m); refused != nil {
			return refused
		}
	}
	return nil
}

// decide counts one thing that a server asks in an answer, and has policy decide on it.
func (x *exchange) decide(ctx context.Context, m *gate.Message) *refusal.Refusal {
	counted, err := x.sess.Asked.Ask(m.ID.Of(m.Raw))
	if err != nil {
		return x.refuseAsked(ctx, m.Method, commonv1.Code_CODE_ABUSE_LIMITED, "of what the server asks, "+err.Error()+".")
	}
	counted.Close() // the client answers in its next request
	return x.judged(ctx, m, true)
}

// mayAsk decides on what a server with sessions asks of a client that has none: nil lets it, and else
// it is what the server reads, which has this raw id of its own.
func (x *v2026) mayAsk(ctx context.Context, id, raw []byte) *upstream.Own {
	m, err := gate.Parse(raw, x.limits)
	var why *refusal.Refusal
	switch own, is := errors.AsType[*gate.Error](err); {
	case is:
		why = x.refuseAsked(ctx, "", own.Code, own.Detail+".")
	case err != nil:
		why = x.refuseAsked(ctx, "", commonv1.Code_CODE_JSON_INVALID, err.Error()+".")
	case !mcp.IsMultiRound(x.msg.Method):
		why = x.refuseAsked(ctx, m.Method, commonv1.Code_CODE_METHOD_INVALID, "the server asks the client where MCP has no questions.")
	default:
		if refused := x.mayBeAsked(m); refused != nil {
			code, text := toldWhy(refused, x.refuseAsked(ctx, m.Method, refused.Code, refused.Detail+"."))
			return new(upstream.Refused(id, code, text))
		}
		why = x.decide(ctx, m)
	}
	if why == nil {
		return nil
	}
	code, text := toldServer(why)
	return new(upstream.Refused(id, code, text))
}

// mayBeAsked returns why the client may not be asked this in an answer, where extensions have no questions.
func (x *exchange) mayBeAsked(m *gate.Message) *question.Error {
	if !mcp.AsksClient(m.Method) {
		return &question.Error{Code: commonv1.Code_CODE_METHOD_DENIED, Method: true, Detail: "the server asks what it was not told that the client can do"}
	}
	return x.offer.Check(m)
}

// readInputs reads what an answer asks, each under an id of the gateway's own; false where some
// reader could find something else there.
func (x *exchange) readInputs(answer *gate.Answer, asks bool) (out []*gate.Message, ok bool) {
	var requests [][]byte
	if asks {
		for _, in := range answer.Inputs {
			requests = append(requests, in.Request(answer.Raw, inputID()))
		}
		ok = answer.Raw[answer.InputRequests.Start] == '{'
	} else {
		var said struct {
			Data struct {
				Elicitations []jsontext.Value `json:"elicitations"`
			} `json:"data"`
		}
		err := json.Unmarshal(answer.Error.Of(answer.Raw), &said, json.MatchCaseInsensitiveNames(true)) // as some readers do: two are one too many
		for _, params := range said.Data.Elicitations {
			if !isAddress(params) {
				return nil, false
			}
			requests = append(requests, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}`, inputID(), mcp.MethodElicit, params))
		}
		ok = err == nil && 0 < len(requests) && len(requests) <= maxElicitations
	}
	for _, raw := range requests {
		m, err := gate.Parse(raw, x.limits)
		if err != nil {
			return nil, false
		}
		out = append(out, m)
	}
	return out, ok
}

// isAddress reports whether a question is by an address, as all are that have to be opened first.
func isAddress(params []byte) bool {
	var has struct {
		Mode string `json:"mode"`
	}
	return json.Unmarshal(params, &has) == nil && has.Mode == "url"
}

// maxElicitations is how many addresses a server may want opened first: each is judged.
const maxElicitations = 100

// inputID is an id that nobody can guess, as raw JSON.
func inputID() []byte { return []byte(`"sluice-` + rand.Text() + `"`) }

// refuseAsked is the refusal of what a server asks, on record.
func (x *exchange) refuseAsked(ctx context.Context, method string, code commonv1.Code, why string) *refusal.Refusal {
	out := &refusal.Refusal{Code: code, Message: why}
	out.ID = x.deps.Pipeline.RecordRefusal(ctx, attempt.Unjudged{
		Principal: x.acting(), Server: x.server, Method: method, Code: code, Message: why, FromServer: true,
	})
	return out
}

// judged has policy decide on a request that goes on within another message, on record; nil where
// it may.
func (x *exchange) judged(ctx context.Context, m *gate.Message, fromServer bool) *refusal.Refusal {
	has := x.has.Answer.Beside()
	defer has.Close()
	return x.deps.Pipeline.Do(ctx, attempt.Call{
		Principal: x.acting(), Stale: x.Stale || x.Revoked(), Revoked: x.Revoked,
		Server: x.server, Message: m, Received: time.Now(), Timeout: x.target.Timeout, FromServer: fromServer,
		Transport: x.target.Server.Transport(), Version: x.sess.Version, Client: x.clientName,
		Upstream: within{}, Room: has, Identity: x.target.Identity,
	}).Refusal
}

// within stands for a message by which a request goes on.
type within struct{}

// Forward implements [attempt.Forwarder].
func (within) Forward(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) {
	answer, err := gate.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":0,"result":{}}`), gate.AnswerLimits())
	return upstream.Answer{Message: answer}, err
}
