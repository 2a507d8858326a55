package edge

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
)

// A server's task is known by its id alone, so the id that a client gets is bound to who got it: before
// the server's own stands a digest of both with a secret of the gateway's. From anybody else it is no
// task's (MCP Tasks extension, Security Considerations).

// takesTasks tells whether the client at hand takes a task for an answer.
func (x *exchange) takesTasks() bool {
	raw := x.msg.Meta.Capabilities.Of(x.msg.Raw)
	if x.inside != nil || !bytes.Contains(raw, []byte("extensions")) {
		return false
	}
	var has struct {
		Extensions map[string]jsontext.Value `json:"extensions"`
	}
	return json.Unmarshal(raw, &has) == nil && has.Extensions[mcp.ExtensionTasks].Kind() == '{'
}

// owner is whose tasks are the caller's on the server: those that an approval tells apart, too.
func (x *exchange) owner() []byte {
	of := reach.AppendPart(nil, x.server)
	for _, p := range slices.Concat([]*identityv1.Principal{x.principal}, x.principal.GetChain()) {
		of = reach.AppendPart(reach.AppendPart(reach.AppendPart(of, p.GetTenant()), p.GetSubject()), p.GetAgent())
	}
	return of
}

// bound is the id of a server's task for the caller.
func (x *exchange) bound(id string) string {
	mac := hmac.New(sha256.New, x.deps.Secret)
	mac.Write(reach.AppendPart(x.owner(), id))
	return hex.EncodeToString(mac.Sum(nil)[:16]) + "." + id
}

// bind adds the edit by which an answer names a task as its client may.
func (x *exchange) bind(answer *gate.Answer, edits []gate.Edit) []gate.Edit {
	var id, kind string
	switch at := answer.TaskID; {
	case !at.Present() || json.Unmarshal(at.Of(answer.Raw), &id) != nil:
		return edits
	case strings.HasPrefix(x.msg.Method, "tasks/"):
	case json.Unmarshal(answer.ResultType.Of(answer.Raw), &kind) != nil || kind != mcp.ResultTask:
		return edits
	}
	with, err := json.Marshal(x.bound(id))
	if err != nil { // it was read from JSON, so this can't be
		with = []byte(`""`)
	}
	return append(edits, gate.Edit{Span: answer.TaskID, With: with})
}

// unbind has the request at hand name a task as its server does. It rejects one that is not the
// caller's.
func (x *exchange) unbind() *rejection {
	if !x.msg.TaskIDValue.Present() || x.isOwnTask() {
		return nil
	}
	_, id, _ := strings.Cut(x.msg.TaskID, ".")
	if !hmac.Equal([]byte(x.bound(id)), []byte(x.msg.TaskID)) {
		return x.noTask()
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
		return x.noTask()
	}
	x.msg = m
	return nil
}

// noTask rejects a request about a task that is not the caller's.
func (x *exchange) noTask() *rejection {
	out := x.rejection(http.StatusBadRequest, commonv1.Code_CODE_PARAMS_INVALID)
	out.rpc, out.message = mcp.CodeInvalidParams, "there is no such task of yours, or none any more."
	return out
}
