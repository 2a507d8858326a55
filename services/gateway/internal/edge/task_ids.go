package edge

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// A server's task is known by its id alone, so the id that a client gets is sealed for who got it, and
// always the same: nobody else can use it, and nobody learns the server's own (MCP Tasks extension,
// Security Considerations).

// owner is whose tasks are the caller's on the server: who an approval is bound to, too.
func (x *exchange) owner() []byte { return reach.AppendCaller(nil, x.Principal, x.server) }

// newSeal makes ids of servers' tasks for clients, with a secret.
func newSeal(secret []byte) (cipher.AEAD, error) {
	key := sha256.Sum256(append([]byte("ids of tasks: "), secret...))
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// sealed is the id of a server's task for the caller. Its nonce is made of what it seals.
func (x *exchange) sealed(id string) string {
	mac := hmac.New(sha256.New, x.deps.Secret)
	mac.Write(reach.AppendPart(x.owner(), id))
	nonce := mac.Sum(nil)[:x.seal.NonceSize()]
	return base64.RawURLEncoding.EncodeToString(x.seal.Seal(nonce, nonce, []byte(id), x.owner()))
}

// unsealed is the server's own id; false where it is none of the caller's.
func (x *exchange) unsealed(id string) (string, bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(id)
	if size := x.seal.NonceSize(); err == nil && len(raw) > size {
		own, err := x.seal.Open(nil, raw[:size], raw[size:], x.owner())
		return string(own), err == nil
	}
	return "", false
}

// bind adds the edits by which an answer names a task as its client may, and says of its end what a client
// may read. A task that the client does not take, or that asks the client in its end, is refused.
func (x *v2026) bind(ctx context.Context, answer *gate.Answer, edits []gate.Edit) ([]gate.Edit, *refusal.Refusal) {
	var id, kind string
	_ = json.Unmarshal(answer.ResultType.Of(answer.Raw), &kind) // what is no text is no type
	asked := strings.HasPrefix(x.msg.Method, "tasks/")
	switch {
	case kind == mcp.ResultTask && (!x.toldTasks || x.msg.Method != mcp.MethodToolsCall):
		return nil, x.unusable(ctx, "the server answers with a task, which the client was not said to take.")
	case kind != mcp.ResultTask && !asked || !answer.TaskID.Present():
		return edits, nil
	case json.Unmarshal(answer.TaskID.Of(answer.Raw), &id) != nil:
		return nil, x.unusable(ctx, "the server names a task by what is no text.")
	}
	with, err := json.Marshal(x.sealed(id))
	if err != nil {
		return nil, x.unusable(ctx, "the server names a task by what is no text.")
	}
	edits = append(edits, gate.Edit{Span: answer.TaskID, With: with})
	for key, at := range map[string]gate.Span{"result": answer.TaskResult, "error": answer.TaskError} {
		if !asked || !at.Present() {
			continue
		}
		end, err := gate.ReadAnswer(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":0,"%s":%s}`, key, at.Of(answer.Raw)), gate.AnswerLimits())
		if err != nil || end.InputRequests.Present() || upstream.HasCode(end, mcp.CodeElicitation) {
			return nil, x.unusable(ctx, "the server asks the client, or what can be read in two ways, at the end of a task.")
		}
		if foreign := end.Clean(nil); len(foreign) > 0 {
			clean, err := gate.Splice(end.Raw, foreign...)
			if err != nil {
				return nil, x.unusable(ctx, "the end of a task could not be cleaned.")
			}
			prefix := len(fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"%s":`, key))
			edits = slices.DeleteFunc(edits, func(e gate.Edit) bool { return at.Start <= e.Span.Start && e.Span.End <= at.End })
			edits = append(edits, gate.Edit{Span: at, With: clean[prefix : len(clean)-1]})
		}
	}
	return edits, nil
}

// unusable is the refusal of an answer that can't go on: the server has done what it was asked.
func (x *exchange) unusable(ctx context.Context, why string) *refusal.Refusal {
	said := x.refuseAsked(ctx, "", commonv1.Code_CODE_METHOD_INVALID, why)
	return &refusal.Refusal{ID: said.ID, Code: commonv1.Code_CODE_OUTCOME_UNKNOWN, Message: why}
}

// restore makes of the request at hand what its server is to read: without what the gateway has told
// its client, and with the server's own id of a task. Nil is a request that can be judged.
func (x *v2026) restore(ctx context.Context) *refusal.Refusal {
	if !x.msg.RequestState.Present() && !x.msg.TaskIDValue.Present() {
		return nil
	}
	end, err := x.has.Answer.TurnFor(ctx, len(x.msg.Raw))
	if err != nil {
		return unreadable() // its caller waits no longer
	}
	defer end()
	if refused := x.resume(); refused != nil {
		return refused
	}
	return x.unbind()
}

// unbind has the request at hand name a task as its server does. It rejects one that is not the
// caller's.
func (x *v2026) unbind() *refusal.Refusal {
	if !x.msg.TaskIDValue.Present() || x.isOwnTask() {
		return nil
	}
	id, ok := x.unsealed(x.msg.TaskID)
	if !ok {
		return noTask()
	}
	as, err := json.Marshal(id)
	var raw []byte
	if err == nil {
		raw, err = gate.Splice(x.msg.Raw, gate.Edit{Span: x.msg.TaskIDValue, With: as})
	}
	m := x.msg
	if err == nil {
		m, err = gate.Parse(raw, x.limits)
	}
	if err != nil {
		return noTask()
	}
	x.msg = m
	return nil
}

// noTask rejects a request about a task that is not the caller's.
func noTask() *refusal.Refusal {
	return refusal.ProtocolError(commonv1.Code_CODE_PARAMS_INVALID, "there is no such task of yours, or none any more.")
}
