package edge

import (
	"context"
	"crypto/rand"
	"slices"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// asksNothing tells whether an answer leaves the client nothing to answer.
func asksNothing(answer *gate.Answer) bool {
	return !answer.InputRequests.Present() || string(answer.InputRequests.Of(answer.Raw)) == "null"
}

// inputs has policy decide on what a server's answer asks of the client (MCP 2026-07-28, Multi
// Round-Trip Requests): each as a request of the server's own, on record. Where one may not be
// asked, or nothing may, the answer does not go on, for the request can't be carried out without
// it; what the server has done by then is not known. A client may act on what is asked in whatever
// revision, and in answers to whatever method.
func (x *exchange) inputs(ctx context.Context, answer *gate.Answer, may bool) *refusal.Refusal {
	if asksNothing(answer) {
		return nil
	}
	var why *refusal.Refusal
	asked, ok := x.readInputs(answer)
	if !may || !ok {
		why = x.unasked(ctx, "", commonv1.Code_CODE_METHOD_INVALID, "the server asks the client where, or in a way that, MCP does not have.")
	}
	for _, m := range asked {
		if why == nil && !slices.Contains(methodsOf(x.can), m.Method) {
			why = x.unasked(ctx, m.Method, commonv1.Code_CODE_METHOD_DENIED, "the server asks what it was not told that the client can do.")
		}
	}
	for _, m := range asked {
		if why != nil {
			break
		}
		question, err := x.sess.Asked.Ask(m.ID.Of(m.Raw))
		if err != nil {
			why = x.unasked(ctx, m.Method, commonv1.Code_CODE_ABUSE_LIMITED, "of what the server asks, "+err.Error()+".")
			break
		}
		question.Close() // the client answers in its next request
		why = x.judged(ctx, m, true)
	}
	if why == nil {
		return nil
	}
	return &refusal.Refusal{ID: why.ID, Code: commonv1.Code_CODE_OUTCOME_UNKNOWN, Message: "the server has got the request, and asks what may not be asked (" + enum.Given(why.Code) + "); whether it has done anything is not known."}
}

// readInputs reads what an answer asks, each under an id of the gateway's own; false where some
// reader could find something else there.
func (x *exchange) readInputs(answer *gate.Answer) (out []*gate.Message, ok bool) {
	for _, in := range answer.Inputs {
		m, err := gate.Parse(in.Request(answer.Raw, []byte(`"sluice-`+rand.Text()+`"`)), x.limits)
		if err != nil {
			return nil, false
		}
		out = append(out, m)
	}
	return out, answer.Raw[answer.InputRequests.Start] == '{'
}

// unasked is the refusal of what a server asks, on record.
func (x *exchange) unasked(ctx context.Context, method string, code commonv1.Code, why string) *refusal.Refusal {
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
		Principal: x.acting(), Stale: x.stale || x.revoked(), Revoked: x.revoked,
		Server: x.server, Message: m, Received: time.Now(), Timeout: x.target.Timeout, FromServer: fromServer,
		Transport: x.target.Server.Transport(), Version: x.sess.Version, Client: x.clientName(),
		Upstream: within{}, Room: has, Identity: x.target.Identity,
	}).Refusal
}

// within stands for a message by which a request goes on.
type within struct{}

// Forward implements [attempt.Forwarder].
func (within) Forward(_ context.Context, req upstream.Request, _ func([]byte)) (upstream.Answer, error) {
	answer, err := gate.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":`+string(req.ID())+`,"result":{}}`), gate.AnswerLimits())
	return upstream.Answer{Message: answer}, err
}
