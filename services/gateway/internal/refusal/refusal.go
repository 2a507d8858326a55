// Package refusal defines the answer to a request that was not executed, and writes this answer for MCP clients.
package refusal

import (
	"math"
	"strconv"
	"strings"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// A Refusal states that a request was not executed, and why.
type Refusal struct {
	// ID is the id of the decision, or "" if no decision was recorded.
	ID string
	// Code is the reason for the refusal.
	Code commonv1.Code
	// Message adds details for the caller. It may be empty.
	Message string
	// Rule is the rule that denied the request, or nil if no rule denied it.
	Rule *policyv1.RuleRef
	// RetryAfter is how long the caller should wait before it repeats the call, or zero if that is not known. The answer
	// contains RetryAfter only if the refusal is retryable.
	RetryAfter time.Duration
	// SessionKey states the scope of the exceeded limit. For example, the limit can count the calls of each session. It is
	// unspecified if no such limit was exceeded.
	SessionKey policyv1.SessionKey
	// PolicyRevision is the revision of the policy that the policy service evaluated, or "" if it did not evaluate the
	// request.
	PolicyRevision string
	// Permanent is true if the same call will be refused until an operator changes something. Such a refusal is not
	// retryable, even if refusals with its code normally are.
	Permanent bool
	// Approval is the approval that the call waits for, or the approval that caused the refusal. It is nil if there is
	// none.
	Approval *Approval
	// IsProtocolError is true if the message itself was not accepted, because it violates the protocol or because there is
	// no capacity for it. In that case, the answer contains a JSON-RPC error and has an HTTP error status
	// ([Refusal.Status]). If the field is false, a valid request was refused, and the method determines whether the answer
	// is a result or an error (MCP 2025-11-25, Tools, Error Handling).
	IsProtocolError bool
	// Versions contains the requested and the supported revisions. It is nil unless Code is CODE_PROTOCOL_VERSION.
	Versions *Versions
	// Scopes contains the OAuth scopes that the call needs. It is nil unless Code is CODE_SCOPE_MISSING.
	Scopes *Scopes
	// Extension is the extension that the client must declare. It is empty unless Code is CODE_CAPABILITY_MISSING.
	Extension string
}

// Versions contains protocol revisions for the error -32022 (MCP 2026-07-28, Versioning).
type Versions struct {
	Supported []string `json:"supported"`
	Requested string   `json:"requested"`
}

// Scopes contains OAuth scopes.
type Scopes struct {
	// Needed are the scopes that a call needs, and Missing are those that the caller does not have.
	Needed, Missing []string
}

// ProtocolError returns the refusal for a message that is not accepted. If no text is given, the refusal uses the
// default text of the code.
func ProtocolError(code commonv1.Code, message string) *Refusal {
	return &Refusal{Code: code, Message: message, IsProtocolError: true}
}

// Approval contains the data of an approval that the caller may see.
type Approval struct {
	// ID identifies the approval. URL is the address at which an approver can decide, or empty if there is none.
	ID, URL string
	// Expires is when the approval expires, or zero if that is not known.
	Expires time.Time
	// DeniedUntil is the time until which an equal call is denied. It is zero if no person has denied the call.
	DeniedUntil time.Time
}

// Retryable reports whether the same call can succeed later even if no person changes anything.
func (r *Refusal) Retryable() bool {
	if r.Permanent {
		return false
	}
	switch r.Code { //nolint:exhaustive // with all other codes, the call fails until a person changes something
	case commonv1.Code_CODE_RATE_LIMITED, commonv1.Code_CODE_BUDGET_EXCEEDED, commonv1.Code_CODE_LOOP_DETECTED:
		return r.RetryAfter > 0
	case commonv1.Code_CODE_POLICY_UNAVAILABLE, commonv1.Code_CODE_LIMITER_UNAVAILABLE,
		commonv1.Code_CODE_AUDIT_UNAVAILABLE, commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, commonv1.Code_CODE_APPROVAL_UNAVAILABLE,
		commonv1.Code_CODE_TOO_MANY_PENDING, commonv1.Code_CODE_APPROVAL_PENDING, commonv1.Code_CODE_AGENT_BUSY,
		commonv1.Code_CODE_ABUSE_LIMITED, commonv1.Code_CODE_TOO_MANY_SESSIONS:
		return true
	default:
		return false
	}
}

// millis converts a waiting time to milliseconds. It rounds up, so that a caller waits long enough.
func millis(d time.Duration) int64 {
	return int64(math.Ceil(float64(d) / float64(time.Millisecond)))
}

// tenths converts a waiting time to seconds, rounded up to tenths of a second.
func tenths(d time.Duration) string {
	return strconv.FormatFloat(math.Ceil(d.Seconds()*10)/10, 'f', -1, 64)
}

// Text returns a message for models and people. The message first states the outcome and then the reason.
func (r *Refusal) Text() string {
	lead, why := headline(r.Code), r.Message
	if r.Code == commonv1.Code_CODE_TOOL_UNKNOWN && r.IsProtocolError {
		lead = "Unknown server" // a URL names the server
	}
	if why == "" {
		why = reasons[r.Code]
	}
	if wait := r.retryAfter(); wait > 0 {
		why = Sentence(why) + " Try again in " + tenths(wait) + " s."
	}
	return lead + ": " + why
}

// retryAfter returns how long the caller should wait before it repeats the call. It returns zero if that is not known
// or if the caller must not repeat the call.
func (r *Refusal) retryAfter() time.Duration {
	if !r.Retryable() {
		return 0
	}
	return r.RetryAfter
}

// Sentence adds a full stop to the text unless the text already ends with punctuation.
func Sentence(text string) string {
	text = strings.TrimSpace(text)
	if text == "" || strings.ContainsAny(text[len(text)-1:], ".!?") || strings.HasSuffix(text, "…") {
		return text
	}
	return text + "."
}

func headline(c commonv1.Code) string {
	switch c { //nolint:exhaustive // all other codes mean that the request was wrong or that a service is unavailable
	case commonv1.Code_CODE_DENIED_BY_RULE, commonv1.Code_CODE_DENIED_BY_DEFAULT, commonv1.Code_CODE_METHOD_DENIED,
		commonv1.Code_CODE_TYPE_ERROR, commonv1.Code_CODE_SCOPE_MISSING, commonv1.Code_CODE_TOOL_CHANGED, commonv1.Code_CODE_QUARANTINED:
		return "Denied by policy"
	case commonv1.Code_CODE_STOPPED:
		return "Stopped by an operator"
	case commonv1.Code_CODE_TOOL_UNKNOWN:
		return "Unknown tool"
	case commonv1.Code_CODE_RATE_LIMITED:
		return "Rate limit reached"
	case commonv1.Code_CODE_BUDGET_EXCEEDED:
		return "Budget spent"
	case commonv1.Code_CODE_LOOP_DETECTED:
		return "Repeated too often"
	case commonv1.Code_CODE_UPSTREAM_TIMEOUT, commonv1.Code_CODE_OUTCOME_UNKNOWN:
		return "Outcome unknown"
	default:
		return "Not executed"
	}
}

var reasons = map[commonv1.Code]string{
	commonv1.Code_CODE_UNSPECIFIED:          "no reason is known.",
	commonv1.Code_CODE_DENIED_BY_RULE:       "a rule denies this call.",
	commonv1.Code_CODE_DENIED_BY_DEFAULT:    "no rule allows this call.",
	commonv1.Code_CODE_METHOD_DENIED:        "no rule allows this method.",
	commonv1.Code_CODE_TYPE_ERROR:           "a rule can't be applied to these arguments: one is missing or has another type.",
	commonv1.Code_CODE_SCOPE_MISSING:        "the call needs OAuth scopes that the caller does not have.",
	commonv1.Code_CODE_TOOL_UNKNOWN:         "the server has no such tool.",
	commonv1.Code_CODE_TOOL_CHANGED:         "the tool's definition is not the one that was accepted.",
	commonv1.Code_CODE_QUARANTINED:          "a person must accept the tool's new definition first.",
	commonv1.Code_CODE_RATE_LIMITED:         "too many calls.",
	commonv1.Code_CODE_BUDGET_EXCEEDED:      "the budget has no room for this call.",
	commonv1.Code_CODE_LOOP_DETECTED:        "the same call was made again and again.",
	commonv1.Code_CODE_ABUSE_LIMITED:        "too many calls of this caller were refused; further refusals are only counted.",
	commonv1.Code_CODE_APPROVAL_REQUIRED:    "a person must approve this call.",
	commonv1.Code_CODE_APPROVAL_PENDING:     "a person must approve this call, and has not decided yet.",
	commonv1.Code_CODE_APPROVAL_DENIED:      "a person decided against this call.",
	commonv1.Code_CODE_APPROVAL_EXPIRED:     "the approval has expired.",
	commonv1.Code_CODE_APPROVAL_USED:        "the approval was used by another call.",
	commonv1.Code_CODE_TOO_MANY_PENDING:     "too many calls of this caller wait for a person.",
	commonv1.Code_CODE_AGENT_BUSY:           "the agent is working on another prompt.",
	commonv1.Code_CODE_APPROVAL_UNAVAILABLE: "a person must approve this call, and approvals are not available.",
	commonv1.Code_CODE_POLICY_UNAVAILABLE:   "the policy service is not available.",
	commonv1.Code_CODE_LIMITER_UNAVAILABLE:  "the rate limit service is not available.",
	commonv1.Code_CODE_AUDIT_UNAVAILABLE:    "the decision can't be recorded.",
	commonv1.Code_CODE_UPSTREAM_UNAVAILABLE: "the server can't be reached.",
	commonv1.Code_CODE_LOGIN_REQUIRED:       "a person must sign in at the server first.",
	commonv1.Code_CODE_UPSTREAM_TIMEOUT:     "the server did not answer in time; whether the call ran is not known.",
	commonv1.Code_CODE_OUTCOME_UNKNOWN:      "the server gave no usable answer; whether the call ran is not known.",
	commonv1.Code_CODE_UNAUTHENTICATED:      "send `Authorization: Bearer <token>` with an agent's token.",
	commonv1.Code_CODE_FORBIDDEN:            "this token may not call tools: use an agent's token.",
	commonv1.Code_CODE_HOST_REFUSED:         "the Host header names none of the accepted hosts; add it to `hosts`.",
	commonv1.Code_CODE_ORIGIN_REFUSED:       "the Origin header names none of the accepted origins; add it to `origins`.",
	commonv1.Code_CODE_MEDIA_TYPE:           "send uncompressed application/json.",
	commonv1.Code_CODE_SESSION_UNKNOWN:      "the session is not known here; initialize again.",
	commonv1.Code_CODE_SESSION_REQUIRED:     "send the Mcp-Session-Id from the response to initialize, exactly once.",
	commonv1.Code_CODE_STOPPED:              "an operator has stopped these calls; do not repeat the call until an operator has resumed them.",
	commonv1.Code_CODE_CAPABILITY_MISSING:   "the client does not declare an extension that this request needs.",
	commonv1.Code_CODE_TOO_MANY_SESSIONS:    "too many sessions are active; end one of them.",
	commonv1.Code_CODE_HEADER_MISMATCH:      "a header disagrees with the body or the session.",
	commonv1.Code_CODE_PROTOCOL_VERSION:     "the protocol version is not supported.",
	commonv1.Code_CODE_BODY_TOO_LARGE:       "the message is too large.",
	commonv1.Code_CODE_JSON_INVALID:         "the message is not JSON.",
	commonv1.Code_CODE_JSON_DUPLICATE_KEY:   "an object has the same key twice.",
	commonv1.Code_CODE_JSON_ENCODING:        "the message is not valid UTF-8.",
	commonv1.Code_CODE_JSON_TRAILING:        "something follows the message.",
	commonv1.Code_CODE_JSON_TOO_DEEP:        "the message is nested too deeply.",
	commonv1.Code_CODE_JSON_TOO_MANY_TOKENS: "the message has too many parts.",
	commonv1.Code_CODE_JSON_KEY:             "a key is too long or contains a control character.",
	commonv1.Code_CODE_JSON_NUMBER:          "a number is out of range: an integer must be an int64, any other number a finite float64.",
	commonv1.Code_CODE_FIELD_CASE_VARIANT:   "a key differs from a protocol field in case only.",
	commonv1.Code_CODE_BATCH:                "batches are not accepted: send one message at a time.",
	commonv1.Code_CODE_JSONRPC_INVALID:      "the message is not a valid JSON-RPC 2.0 message.",
	commonv1.Code_CODE_ID_INVALID:           "the id is missing, or neither a short string nor a safe integer.",
	commonv1.Code_CODE_METHOD_INVALID:       "the method's name breaks the grammar of method names.",
	commonv1.Code_CODE_TOOL_NAME_INVALID:    "the tool's name is missing or breaks the grammar of tool names.",
	commonv1.Code_CODE_PARAMS_INVALID:       "params, arguments or _meta is not an object, or a required member is missing.",
}
