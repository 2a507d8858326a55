package mcpserver

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/approvals"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/hosttools"
)

// maxHold limits how long the gateway holds the call of a hook, even if the hook asks for a longer time.
const maxHold = 10 * time.Minute

// hookEvent is the body of a request to /hook/CLIENT.
type hookEvent struct {
	// Event is `call` before a call, or `permission` when the client is about to ask its user for permission.
	Event string `json:"event"`
	// Tool is the name of the tool, and Input contains the arguments of the call.
	Tool  string         `json:"tool"`
	Input jsontext.Value `json:"input"`
	// ID identifies the call within its session. It is empty if the client assigns no ids to calls.
	ID string `json:"id"`
	// Session and Turn identify a conversation in the client.
	Session string `json:"session"`
	Turn    string `json:"turn"`
	// HoldMS is how long the request may wait for approvers, in milliseconds.
	HoldMS int64 `json:"hold_ms"`
}

// These are the possible verdicts on a call.
const (
	verdictAllow = "allow" // a person has approved this very call
	verdictPass  = "pass"  // policy has no objection, so the rules of the client apply
	verdictDeny  = "deny"
)

// hookVerdict is the answer to a request to /hook/CLIENT.
type hookVerdict struct {
	Verdict string `json:"verdict"`
	// Reason explains to the model and to people why the call is denied.
	Reason string `json:"reason,omitzero"`
	// Code is the code of the refusal. Decision is the id of the recorded decision.
	Code     string `json:"code,omitzero"`
	Decision string `json:"decision,omitzero"`
}

func denied(refused *refusal.Refusal) hookVerdict {
	reason, _, waits := strings.Cut(refused.Text(), approvals.WaitAdvice) // WaitAdvice names a tool that only MCP clients have
	if waits && refused.Approval != nil {
		reason += " The approval's id is " + refused.Approval.ID + "."
	}
	return hookVerdict{Verdict: verdictDeny, Reason: reason, Code: enum.NameOrEmpty(refused.Code), Decision: refused.ID}
}

// hook handles a hook's request. It responds with a verdict, which says whether the client may execute a call to one of
// its own tools.
func (s *Server) hook(w http.ResponseWriter, r *http.Request, c httpserver.Caller) {
	client := r.PathValue("client")
	slot, err := s.InFlight.Begin(c.Principal, "")
	if err != nil {
		s.refuseHTTP(w, r, c, protocol.TooMuchInFlight(err))
		return
	}
	defer slot.End()
	event, refused := s.readHook(slot.Reader(r.Body))
	verdict := hookVerdict{}
	switch {
	case refused != nil:
		s.refuseHTTP(w, r, c, refused)
		return
	case s.Hosts[hosttools.ServerName(client)] == nil:
		verdict = hookVerdict{Verdict: verdictDeny, Reason: "Not executed: this mesh does not know the tools of the client. Run `sluice hook install " + clientOr(client) + "`."}
	case event.Event == "permission":
		verdict.Verdict = verdictPass
		if s.hooks.of(c).takeApproved(approvedKey(c, client, event)) {
			verdict.Verdict = verdictAllow
		}
	default:
		verdict = s.hooks.of(c).once(r.Context(), c, client, event, func() hookVerdict { return s.judgeHook(r.Context(), c, client, event) })
	}
	body, err := json.Marshal(verdict)
	if err != nil {
		s.deps.Log.ErrorContext(r.Context(), "answer to a hook could not be written", "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the client may have disconnected
}

func clientOr(client string) string {
	if hosttools.Name(client) == "" {
		return "CLIENT"
	}
	return client
}

// readHook reads and checks the body of a hook's request.
func (s *Server) readHook(from io.Reader) (event hookEvent, refused *refusal.Refusal) {
	limit := int64(s.Limits.Bytes)
	body, err := io.ReadAll(io.LimitReader(from, limit+1))
	switch {
	case errors.Is(err, limits.ErrRequests):
		return event, protocol.TooMuchInFlight(err)
	case err != nil:
		return event, protocol.UnreadableBody()
	case int64(len(body)) > limit:
		return event, refusal.ProtocolError(commonv1.Code_CODE_BODY_TOO_LARGE, "")
	}
	if err := json.Unmarshal(body, &event, json.RejectUnknownMembers(true)); err != nil {
		return event, refusal.ProtocolError(commonv1.Code_CODE_JSON_INVALID, "the event of the hook is not understood: "+err.Error()+".")
	}
	if event.Event != "call" && event.Event != "permission" || event.Tool == "" || event.Input.Kind() != '{' {
		return event, refusal.ProtocolError(commonv1.Code_CODE_PARAMS_INVALID, "the event of the hook has no tool or no input.")
	}
	event.Input = event.Input.Clone()
	return event, nil
}

// judgeHook sends a call through the pipeline and returns the verdict.
func (s *Server) judgeHook(ctx context.Context, c httpserver.Caller, client string, event hookEvent) hookVerdict {
	message, err := hostCall(client, event)
	if err != nil {
		return denied(&refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID})
	}
	hold := min(time.Duration(max(event.HoldMS, 0))*time.Millisecond, maxHold)
	server := hosttools.ServerName(client)
	done, err := s.do(ctx, c, Request{Principal: c.Principal, Server: server, Message: message, Hold: &hold}, s.NewHookRequest)
	switch {
	case err != nil:
		return denied(&refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, Message: err.Error() + "."})
	case done.Refusal != nil:
		return denied(done.Refusal)
	case done.ID == "" || !isAllowed(done):
		return denied(&refusal.Refusal{ID: done.ID, Code: commonv1.Code_CODE_POLICY_UNAVAILABLE})
	case !done.Approved:
		return hookVerdict{Verdict: verdictPass, Decision: done.ID}
	}
	if client == hosttools.Codex { // Codex sends a second event before it asks its user
		s.hooks.of(c).putApproved(approvedKey(c, client, event))
	}
	return hookVerdict{Verdict: verdictAllow, Decision: done.ID}
}

// isAllowed reports whether the pipeline has allowed a call. done is the pipeline's response.
func isAllowed(done Response) bool {
	var answer struct {
		Result jsontext.Value `json:"result"`
	}
	if err := json.Unmarshal(done.Answer, &answer); err != nil || answer.Result.Kind() != '{' {
		return false
	}
	effect := done.Decision.GetEffect()
	return effect == policyv1.Effect_EFFECT_ALLOW || effect == policyv1.Effect_EFFECT_REQUIRE_APPROVAL
}

// hostCall returns an MCP message for a call to one of the client's own tools. A call to a tool that the gateway does
// not know becomes a call to [hosttools.Other].
func hostCall(client string, event hookEvent) ([]byte, error) {
	arguments, name := event.Input, event.Tool
	if !hosttools.Knows(client, name) {
		type actual struct {
			Tool  string         `json:"tool"`
			Input jsontext.Value `json:"input"`
		}
		var err error
		if arguments, err = json.Marshal(actual{name, arguments}); err != nil {
			return nil, err
		}
		name = hosttools.Other
	}
	quoted, err := jsontext.AppendQuote(nil, name)
	if err != nil {
		return nil, err
	}
	out := append([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":`), quoted...)
	return append(append(append(out, `,"arguments":`...), arguments...), "}}"...), nil
}

// digest returns a digest of the values. The values may contain any characters.
func digest(values ...string) [sha256.Size]byte {
	return sha256.Sum256([]byte(canonicaljson.Strings(values)))
}

// approvedKey returns a key that identifies a call. The key is the same for both events that a client sends about a
// call, although Codex adds a description to the input of the second event. No known tool of Codex has an argument
// called description.
func approvedKey(c httpserver.Caller, client string, event hookEvent) [sha256.Size]byte {
	input := map[string]jsontext.Value{}
	if err := json.Unmarshal(event.Input, &input); err != nil {
		input = nil // cannot happen, because readHook accepts only valid JSON objects
	}
	if hosttools.Knows(client, event.Tool) {
		delete(input, "description")
	}
	raw, err := json.Marshal(input, json.Deterministic(true))
	if err != nil {
		raw = event.Input
	}
	return digest(append(callerOf(c), client, event.Session, event.Turn, event.Tool, string(raw))...)
}

func callerOf(c httpserver.Caller) []string {
	return []string{c.Principal.GetTenant(), c.Principal.GetSubject(), c.Principal.GetAgent()}
}

// errReused means that the client has used the id of an earlier call for a different call.
var errReused = errors.New("the client has used the id of another call")
