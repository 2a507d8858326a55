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
)

// asksNothing tells whether an answer leaves the client nothing to answer.
func asksNothing(answer *gate.Answer) bool {
	return !answer.InputRequests.Present() || string(answer.InputRequests.Of(answer.Raw)) == "null"
}

// inputs has policy decide on what a server's answer asks of the client (MCP 2026-07-28, Multi
// Round-Trip Requests): each as a request of the server's own, on record. Where one may not be
// asked the answer does not go on, for the request can't be carried out without it.
func (x *exchange) inputs(ctx context.Context, answer *gate.Answer) *refusal.Refusal {
	if x.modern == nil || asksNothing(answer) {
		return nil
	}
	if answer.Raw[answer.InputRequests.Start] != '{' {
		return &refusal.Refusal{Code: commonv1.Code_CODE_OUTCOME_UNKNOWN, Message: "the server asks the client in a way that can't be read."}
	}
	for _, in := range answer.Inputs {
		id := []byte(`"sluice-` + rand.Text() + `"`)
		question, err := x.sess.Asked.Ask(id)
		if err != nil {
			return x.unasked(ctx, "", commonv1.Code_CODE_ABUSE_LIMITED, err.Error()+".")
		}
		question.Close() // the client answers in its next request
		m, err := gate.Parse(in.Request(answer.Raw, id), x.limits)
		if err != nil {
			return x.unasked(ctx, "", commonv1.Code_CODE_METHOD_INVALID, "the server asks the client in a way that can't be read.")
		}
		if !slices.Contains(methodsOf(x.can), m.Method) {
			return x.unasked(ctx, m.Method, commonv1.Code_CODE_METHOD_DENIED, "the server asks what it was not told that the client can do.")
		}
		result := x.judged(ctx, m, true)
		if result != nil {
			return result
		}
	}
	return nil
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
