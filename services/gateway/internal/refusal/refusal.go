// Package refusal is what a caller sees of a call that was not carried out: one
// value, and the forms in which MCP clients understand it.
package refusal

import (
	"fmt"
	"math"
	"strings"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// A Refusal says that something was not carried out, and why.
type Refusal struct {
	// ID identifies the decision; empty where nothing was recorded by itself.
	ID string
	// Code is why.
	Code commonv1.Code
	// Message is what the caller may know beyond the code; may be empty.
	Message string
	// Rule is the rule that decided; nil where none did.
	Rule *policyv1.RuleRef
	// RetryAfter is when the same call may succeed; zero where that is not known.
	RetryAfter time.Duration
	// SessionKey is what "per session" meant, where a limit refused.
	SessionKey policyv1.SessionKey
	// PolicyRevision is the revision that judged; empty where none did.
	PolicyRevision string
}

// CodeName returns a code as it is written everywhere outside protobuf, for
// example "denied_by_rule"; empty for no code.
func CodeName(c commonv1.Code) string {
	if c == commonv1.Code_CODE_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(c.String(), "CODE_"))
}

// Retryable tells whether the same call may succeed later without anybody
// changing anything.
func (r *Refusal) Retryable() bool {
	switch r.Code { //nolint:exhaustive // what is not named here stays refused until somebody acts
	case commonv1.Code_CODE_RATE_LIMITED, commonv1.Code_CODE_BUDGET_EXCEEDED, commonv1.Code_CODE_LOOP_DETECTED:
		return r.RetryAfter > 0
	case commonv1.Code_CODE_POLICY_UNAVAILABLE, commonv1.Code_CODE_LIMITER_UNAVAILABLE,
		commonv1.Code_CODE_AUDIT_UNAVAILABLE, commonv1.Code_CODE_UPSTREAM_UNAVAILABLE,
		commonv1.Code_CODE_TOO_MANY_PENDING, commonv1.Code_CODE_APPROVAL_PENDING, commonv1.Code_CODE_AGENT_BUSY,
		commonv1.Code_CODE_ABUSE_LIMITED, commonv1.Code_CODE_TOO_MANY_SESSIONS:
		return true
	default:
		return false
	}
}

// millis rounds a wait up: who waits that long may go.
func millis(d time.Duration) int64 {
	return int64(math.Ceil(float64(d) / float64(time.Millisecond)))
}

// Text returns what a model or a person reads: first what happened, then why.
func (r *Refusal) Text() string {
	lead, why := headline(r.Code), r.Message
	if why == "" {
		why = reasons[r.Code]
	}
	if r.RetryAfter > 0 {
		why = strings.TrimSpace(why + fmt.Sprintf(" Try again in %.3g s.", math.Ceil(r.RetryAfter.Seconds()*10)/10))
	}
	return lead + ": " + why
}

func headline(c commonv1.Code) string {
	switch c { //nolint:exhaustive // everything else was refused because something was wrong or away
	case commonv1.Code_CODE_DENIED_BY_RULE, commonv1.Code_CODE_DENIED_BY_DEFAULT, commonv1.Code_CODE_METHOD_DENIED,
		commonv1.Code_CODE_TYPE_ERROR, commonv1.Code_CODE_TOOL_CHANGED, commonv1.Code_CODE_QUARANTINED:
		return "Denied by policy"
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

// reasons are what is said where a decision brings no message of its own.
var reasons = map[commonv1.Code]string{
	commonv1.Code_CODE_DENIED_BY_RULE:       "a rule denies this call.",
	commonv1.Code_CODE_DENIED_BY_DEFAULT:    "no rule allows this call.",
	commonv1.Code_CODE_METHOD_DENIED:        "no rule allows this method.",
	commonv1.Code_CODE_TOOL_UNKNOWN:         "the server has no such tool.",
	commonv1.Code_CODE_RATE_LIMITED:         "too many calls.",
	commonv1.Code_CODE_APPROVAL_REQUIRED:    "a person must approve this call.",
	commonv1.Code_CODE_APPROVAL_UNAVAILABLE: "a person must approve this call, and approvals are not available.",
	commonv1.Code_CODE_POLICY_UNAVAILABLE:   "the policy service is not available.",
	commonv1.Code_CODE_LIMITER_UNAVAILABLE:  "the rate limit service is not available.",
	commonv1.Code_CODE_AUDIT_UNAVAILABLE:    "the decision can't be recorded.",
	commonv1.Code_CODE_UPSTREAM_UNAVAILABLE: "the server can't be reached.",
	commonv1.Code_CODE_UPSTREAM_TIMEOUT:     "the server did not answer in time; whether the call ran is not known.",
	commonv1.Code_CODE_OUTCOME_UNKNOWN:      "the server gave no usable answer; whether the call ran is not known.",
	commonv1.Code_CODE_UNAUTHENTICATED:      "send `Authorization: Bearer <token>` with an agent's token.",
	commonv1.Code_CODE_FORBIDDEN:            "this token calls no tools: use an agent's token.",
	commonv1.Code_CODE_HOST_REFUSED:         "the Host header names none of the accepted hosts; add it to `hosts`.",
	commonv1.Code_CODE_ORIGIN_REFUSED:       "the Origin header names none of the accepted origins; add it to `origins`.",
	commonv1.Code_CODE_MEDIA_TYPE:           "send uncompressed application/json.",
	commonv1.Code_CODE_SESSION_UNKNOWN:      "the session is not known here; initialize again.",
	commonv1.Code_CODE_TOO_MANY_SESSIONS:    "too many sessions are at work; end one of them.",
	commonv1.Code_CODE_HEADER_MISMATCH:      "a header disagrees with the body or the session.",
	commonv1.Code_CODE_PROTOCOL_VERSION:     "the protocol version is not supported.",
}
