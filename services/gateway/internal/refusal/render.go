package refusal

import (
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// decision is `_meta["dev.sluice/decision"]` and the `data` of errors.
type decision struct {
	ID             string `json:"id,omitzero"`
	Code           string `json:"code"`
	Rule           string `json:"rule,omitzero"`
	Retryable      bool   `json:"retryable"`
	RetryAfterMs   int64  `json:"retryAfterMs,omitzero"`
	SessionKey     string `json:"sessionKey,omitzero"`
	PolicyRevision string `json:"policyRevision,omitzero"`
	// Approval is absent where none is concerned.
	Approval *approval `json:"approval,omitzero"`
}

type approval struct {
	ID        string    `json:"id"`
	URL       string    `json:"url,omitzero"`
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	// DeniedUntil is absent where no person has denied it.
	DeniedUntil time.Time `json:"deniedUntil,omitzero"`
}

type textContent struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type toolResult struct {
	Type    string              `json:"resultType,omitzero"`
	Content []textContent       `json:"content"`
	IsError bool                `json:"isError"`
	Meta    map[string]decision `json:"_meta"`
}

type legResult struct {
	Type     string              `json:"resultType"`
	Requests struct{}            `json:"inputRequests"`
	State    string              `json:"requestState"`
	Meta     map[string]decision `json:"_meta"`
}

type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitzero"`
}

type response struct {
	Version string         `json:"jsonrpc"`
	ID      jsontext.Value `json:"id"`
	Result  any            `json:"result,omitzero"`
	Error   *rpcError      `json:"error,omitzero"`
}

// null is the id of an answer to a message whose id could not be read.
var null = jsontext.Value("null")

// ToolResult returns the answer to a refused tools/call: a result with isError,
// never a protocol error, and never structuredContent, which some clients hold
// to the tool's own schema. id is the request's raw id, and resultType empty in
// revisions that have none.
func (r *Refusal) ToolResult(id []byte, resultType string) ([]byte, error) {
	return json.Marshal(response{Version: "2.0", ID: id, Result: toolResult{
		Type:    resultType,
		Content: []textContent{{Type: "text", Text: r.Text()}},
		IsError: true,
		Meta:    map[string]decision{mcp.MetaDecision: r.decision()},
	}})
}

// Leg returns the answer to a call of 2026-07-28 by which its client makes it again, with this
// requestState, and is asked nothing (MCP 2026-07-28, Multi Round-Trip Requests). Its inputRequests are
// empty and not absent: some clients take it for an end else.
func (r *Refusal) Leg(id []byte, state string) ([]byte, error) {
	return json.Marshal(response{Version: "2.0", ID: id, Result: legResult{
		Type: mcp.ResultInputRequired, Requests: struct{}{}, State: state, Meta: map[string]decision{mcp.MetaDecision: r.decision()},
	}})
}

// Error returns the answer to any other refused request: a JSON-RPC error with
// the decision in its data. id is the request's raw id; nil where it could not be
// read.
func (r *Refusal) Error(id []byte, code int) ([]byte, error) {
	return r.errorWith(id, code, r.decision())
}

// VersionError returns the answer to a request of an unsupported revision (MCP
// 2026-07-28, error -32022), by which clients fall back.
func (r *Refusal) VersionError(id []byte, requested string, supported []string) ([]byte, error) {
	return r.errorWith(id, mcp.CodeVersionUnsupported, struct {
		Supported []string `json:"supported"`
		Requested string   `json:"requested"`
		decision  `json:",inline"`
	}{supported, requested, r.decision()})
}

// CapabilityError returns the answer to a request whose client has not said that it has this extension
// (MCP 2026-07-28, error -32021).
func (r *Refusal) CapabilityError(id []byte, extension string) ([]byte, error) {
	type capabilities struct {
		Extensions map[string]struct{} `json:"extensions"`
	}
	return r.errorWith(id, mcp.CodeCapabilityMissing, struct {
		Required capabilities `json:"requiredCapabilities"`
		decision `json:",inline"`
	}{capabilities{map[string]struct{}{extension: {}}}, r.decision()})
}

// Meta is `_meta` of a result that says the decision.
func (r *Refusal) Meta() map[string]any { return map[string]any{mcp.MetaDecision: r.decision()} }

func (r *Refusal) errorWith(id []byte, code int, data any) ([]byte, error) {
	if id == nil {
		id = null
	}
	return json.Marshal(response{Version: "2.0", ID: id, Error: &rpcError{Code: code, Message: r.Text(), Data: data}})
}

func (r *Refusal) decision() decision {
	var waits *approval
	if a := r.Approval; a != nil {
		waits = &approval{ID: a.ID, URL: a.URL, ExpiresAt: a.Expires, DeniedUntil: a.DeniedUntil}
	}
	return decision{
		Approval:       waits,
		ID:             r.ID,
		Code:           enum.Given(r.Code),
		Rule:           ruleName(r.Rule),
		Retryable:      r.Retryable(),
		RetryAfterMs:   millis(r.retryAfter()),
		SessionKey:     sessionKeys[r.SessionKey],
		PolicyRevision: r.PolicyRevision,
	}
}

// ruleName joins a document and a rule as people write them.
func ruleName(r *policyv1.RuleRef) string {
	if r.GetRule() == "" {
		return r.GetDocument()
	}
	return r.GetDocument() + "/" + r.GetRule()
}

var sessionKeys = map[policyv1.SessionKey]string{
	policyv1.SessionKey_SESSION_KEY_RUN:       "run",
	policyv1.SessionKey_SESSION_KEY_SESSION:   "session",
	policyv1.SessionKey_SESSION_KEY_PRINCIPAL: "principal",
}
