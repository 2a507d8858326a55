package refusal

import (
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// decision is the value of `_meta["dev.sluice/decision"]` in results, and the value of `data` in errors.
type decision struct {
	ID             string `json:"id,omitzero"`
	Code           string `json:"code"`
	Rule           string `json:"rule,omitzero"`
	Retryable      bool   `json:"retryable"`
	RetryAfterMs   int64  `json:"retryAfterMs,omitzero"`
	SessionKey     string `json:"sessionKey,omitzero"`
	PolicyRevision string `json:"policyRevision,omitzero"`
	// NeededScopes and MissingScopes are present only if scopes are missing.
	NeededScopes  []string `json:"neededScopes,omitzero"`
	MissingScopes []string `json:"missingScopes,omitzero"`
	// Approval is present only if the refusal has an approval.
	Approval *approval `json:"approval,omitzero"`
}

type approval struct {
	ID        string    `json:"id"`
	URL       string    `json:"url,omitzero"`
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	// DeniedUntil is present only if a person has denied the approval.
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

type retryResult struct {
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

var null = jsontext.Value("null")

// A Request describes the refused request, which determines the form of the answer.
type Request struct {
	// ID is the raw id, or nil if it could not be read.
	ID []byte
	// Method is the MCP method, or "" if it could not be read.
	Method string
	// ResultType is the `resultType` that results must have, or "" in revisions that do not define it.
	ResultType string
}

// Answer returns the JSON-RPC response to a refused request. If the request is a valid tools/call, the response is a
// result with isError, because models do not see protocol errors. Otherwise it is an error.
func (r *Refusal) Answer(to Request) ([]byte, error) {
	if !r.IsProtocolError && to.Method == mcp.MethodToolsCall {
		return r.toolResult(to.ID, to.ResultType)
	}
	return r.Error(to.ID, r.RPCCode())
}

// toolResult returns a result with isError. The result has no structuredContent, because some clients validate
// structuredContent against the tool's output schema.
func (r *Refusal) toolResult(id []byte, resultType string) ([]byte, error) {
	return json.Marshal(response{Version: "2.0", ID: id, Result: toolResult{
		Type:    resultType,
		Content: []textContent{{Type: "text", Text: r.Text()}},
		IsError: true,
		Meta:    map[string]decision{mcp.MetaDecision: r.decision()},
	}})
}

// RetryResponse returns an answer that makes a client of revision 2026-07-28 repeat the call with the given
// requestState, without asking its user (MCP 2026-07-28, Multi Round-Trip Requests). The answer contains an empty
// inputRequests, because some clients treat an answer without inputRequests as the final result.
func (r *Refusal) RetryResponse(id []byte, state string) ([]byte, error) {
	return json.Marshal(response{Version: "2.0", ID: id, Result: retryResult{
		Type: mcp.ResultInputRequired, Requests: struct{}{}, State: state, Meta: map[string]decision{mcp.MetaDecision: r.decision()},
	}})
}

// Error returns a JSON-RPC error whose data contains the decision. id is the raw id of the request, or nil if it could
// not be read.
func (r *Refusal) Error(id []byte, code int) ([]byte, error) {
	if id == nil {
		id = null
	}
	return json.Marshal(response{Version: "2.0", ID: id, Error: &rpcError{Code: code, Message: r.Text(), Data: r.data()}})
}

// data returns the value of `data` in an error, which contains the decision. For the errors -32022 and -32021, the
// value also contains the members that MCP 2026-07-28 requires.
func (r *Refusal) data() any {
	switch {
	case r.Versions != nil:
		return struct {
			Versions `json:",inline"`
			decision `json:",inline"`
		}{*r.Versions, r.decision()}
	case r.Extension != "":
		type capabilities struct {
			Extensions map[string]struct{} `json:"extensions"`
		}
		return struct {
			Required capabilities `json:"requiredCapabilities"`
			decision `json:",inline"`
		}{capabilities{map[string]struct{}{r.Extension: {}}}, r.decision()}
	default:
		return r.decision()
	}
}

// Meta returns the `_meta` of a result. It contains the decision.
func (r *Refusal) Meta() map[string]any { return map[string]any{mcp.MetaDecision: r.decision()} }

func (r *Refusal) decision() decision {
	var waits *approval
	if a := r.Approval; a != nil {
		waits = &approval{ID: a.ID, URL: a.URL, ExpiresAt: a.Expires, DeniedUntil: a.DeniedUntil}
	}
	scopes := Scopes{}
	if r.Scopes != nil {
		scopes = *r.Scopes
	}
	return decision{
		Approval:       waits,
		ID:             r.ID,
		Code:           enum.NameOrEmpty(r.Code),
		Rule:           ruleName(r.Rule),
		Retryable:      r.Retryable(),
		RetryAfterMs:   millis(r.retryAfter()),
		SessionKey:     sessionKeys[r.SessionKey],
		PolicyRevision: r.PolicyRevision,
		NeededScopes:   scopes.Needed,
		MissingScopes:  scopes.Missing,
	}
}

// ruleName returns a rule's name in the form `document/rule`.
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
