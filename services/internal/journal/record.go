package journal

import "time"

// Kind is what a record tells. The zero value is written by nobody.
type Kind string

// The kinds of records.
const (
	// KindClaim says that an approved call is about to be claimed; it is written
	// before its limits are reserved, so that a crash leaves no claim that nobody
	// knows of.
	KindClaim Kind = "claim"
	// KindSettled says that the approval service and the limiter know what came of an
	// approved call: a replay has nothing to do for it.
	KindSettled Kind = "settled"
	// KindIntent says that a call was allowed and is about to be sent.
	KindIntent Kind = "intent"
	// KindOutcome says what came of a call; its decision id is the intent's.
	KindOutcome Kind = "outcome"
	// KindRefusal says that a call was refused.
	KindRefusal Kind = "refusal"
	// KindPassed counts messages of one principal, server and method that needed no
	// rule, such as a ping.
	KindPassed Kind = "passed"
	// KindAdmission counts requests that were refused before anybody was identified.
	KindAdmission Kind = "admission"
	// KindPruned says which segments of its chain were removed.
	KindPruned Kind = "pruned"
	// KindRecovery says that the journal was found torn at a start, or could not be
	// written for a while, and goes on.
	KindRecovery Kind = "recovery"
)

// ResultClass is what came of a call that was to be sent. On an outcome the zero
// value is recorded as [ResultUnknown].
type ResultClass string

// The classes of results.
const (
	// ResultOK says that the tool answered.
	ResultOK ResultClass = "ok"
	// ResultToolError says that the tool answered with isError.
	ResultToolError ResultClass = "tool_error"
	// ResultProtocolError says that the server answered with a JSON-RPC error.
	ResultProtocolError ResultClass = "protocol_error"
	// ResultUnknown says that no usable answer came back: the call may have run.
	ResultUnknown ResultClass = "unknown"
	// ResultNeverSent says that the call provably never left.
	ResultNeverSent ResultClass = "never_sent"
)

// Record is one record: one line of a segment. The order of its fields is the
// order on disk, and fields at their zero value are left out there. It holds no
// argument values, no tokens and no session's handle: who fills it in sees to that.
//
// Seq, Time, Prev, SealKey, Oldest, Kind, Build and CRC are the journal's own: what a
// caller puts there is ignored. Times are recorded in UTC.
type Record struct {
	// Seq is the place in its chain, from 1, without gaps.
	Seq int64 `json:"seq,omitzero"`
	// Time is when the record was written.
	Time time.Time `json:"time,omitzero"`
	// Prev is the SHA-256 of the line before it in its chain without the newline, in
	// hex; 64 zeros on the first record.
	Prev string `json:"prev,omitzero"`
	// SealKey is the public half of the key that seals heads, in hex; only on the first
	// record of each segment.
	SealKey string `json:"seal_key,omitzero"`
	// Oldest is the seq of the oldest record of the chain that was kept when the segment
	// was begun, whose first record this is; 0 on all others.
	Oldest int64 `json:"oldest,omitzero"`
	// Kind is what the record tells.
	Kind Kind `json:"kind"`

	// DecisionID is the decision that it belongs to; the same on an intent and its
	// outcome. Never empty on an intent, an outcome or a refusal.
	DecisionID string `json:"decision_id,omitzero"`
	// TraceID is the trace of the call: hex, 32 characters.
	TraceID string `json:"trace_id,omitzero"`
	// Principal is on whose behalf the call is made; its fields stand in the record
	// itself.
	Principal
	// Chain is who stands behind the principal, nearest first.
	Chain []Principal `json:"chain,omitempty"`
	// Session is a digest of the session's handle.
	Session string `json:"session,omitzero"`
	// Run is the run that the client declared.
	Run string `json:"run,omitzero"`
	// Server is the upstream, by its configured name.
	Server string `json:"server,omitzero"`
	// Method is the MCP method.
	Method string `json:"method,omitzero"`
	// Tool is the tool, or what else the method names.
	Tool string `json:"tool,omitzero"`
	// FromServer says that the server asked the client, and not the client the server.
	FromServer bool `json:"from_server,omitzero"`
	// DefinitionDigest is the digest of the tool's definition that the caller's
	// session listed, in hex.
	DefinitionDigest string `json:"definition_digest,omitempty"`
	// Category and Risk are what the catalogue held the tool to be; empty where it knew
	// nothing of it.
	Category string `json:"category,omitzero"`
	Risk     string `json:"risk,omitzero"`

	// PolicyRevision is the revision that judged, in hex.
	PolicyRevision string `json:"policy_revision,omitzero"`
	// Rule is the rule that decided; zero where a default did.
	Rule Rule `json:"rule,omitzero"`
	// Effect is what was carried out: allow, deny or require_approval.
	Effect string `json:"effect,omitzero"`
	// Code is why the call was refused, as clients see it; empty where it ran.
	Code string `json:"code,omitzero"`
	// Hidden says whether the caller's list did not have the tool: it was hidden from
	// the caller, or is not there.
	Hidden bool `json:"hidden,omitzero"`
	// Message is the text that the caller saw.
	Message string `json:"message,omitzero"`
	// Limits are the limits that bore on the call.
	Limits []Limit `json:"limits,omitempty"`
	// ReservedAt is when they were reserved, by the limiter's clock.
	ReservedAt time.Time `json:"reserved_at,omitzero"`
	// LimitLeaseID is the lease of those limits, on intents and outcomes; empty where
	// nothing was reserved.
	LimitLeaseID string `json:"limit_lease_id,omitzero"`
	// SessionKey is what "per session" meant: run, session or principal.
	SessionKey string `json:"session_key,omitzero"`
	// IdempotencyKey is what the limits of a claim are reserved under.
	IdempotencyKey string `json:"idempotency_key,omitzero"`
	// ApprovalID is the approval that let the call pass, or that it waits for.
	ApprovalID string `json:"approval_id,omitzero"`
	// Attempt is that approval's, on claims, intents and outcomes.
	Attempt int32 `json:"attempt,omitzero"`
	// ApprovalDigest is what the approval is bound to, on claims and intents, in hex.
	ApprovalDigest string `json:"approval_digest,omitzero"`
	// Votes are those that let the call pass, oldest first, on intents: of the approval
	// itself or of the one whose grant covers the call.
	Votes []Vote `json:"votes,omitempty"`
	// Grant is the approval whose grant covers the call, on claims and intents; empty
	// where people decided on this very call.
	Grant string `json:"grant,omitzero"`

	// ArgumentsHMAC is what [Journal.HMAC] made of the raw bytes of the arguments, of another
	// method than tools/call of the params.
	ArgumentsHMAC string `json:"arguments_hmac,omitzero"`
	// RequestBytes is the size of the request.
	RequestBytes int64 `json:"request_bytes,omitzero"`
	// ResultBytes is the size of the result.
	ResultBytes int64 `json:"result_bytes,omitzero"`
	// ResultClass is what came of the call; only on outcomes.
	ResultClass ResultClass `json:"result_class,omitzero"`
	// UpstreamStatus is the HTTP status of the upstream; 0 where it has none.
	UpstreamStatus int `json:"upstream_status,omitzero"`
	// LatencyMS is the time from the request's last byte to the answer's, in
	// milliseconds; finite.
	LatencyMS float64 `json:"latency_ms,omitzero"`

	// Count is how many requests a counted record stands for; 0 means one. On a
	// recovery it is how many outcomes were lost, in the chain of refusals how many
	// refusals, and 0 means none.
	Count int64 `json:"count,omitzero"`
	// Peer is the address of counted refusals, without its port; "*" stands for
	// peers that were too many to be told apart.
	Peer string `json:"peer,omitzero"`
	// Since is when the stretch of time began that a record sums up.
	Since time.Time `json:"since,omitzero"`
	// CutBytes is how many bytes a recovery cut off the end of a segment.
	CutBytes int64 `json:"cut_bytes,omitzero"`
	// CutFile is the name of the file beside the segment that holds them.
	CutFile string `json:"cut_file,omitzero"`
	// Pruned are the segments that were removed, oldest first; only on pruned records.
	Pruned []Pruned `json:"pruned,omitempty"`

	// Build is the version of the program that wrote the record.
	Build string `json:"build,omitzero"`
	// CRC is the CRC-32C of the line up to this field, in hex. The chain can't show
	// damage to its newest record, as none follows it; this does.
	CRC string `json:"crc,omitzero"`
}

// Principal is a caller, or one who stands behind a caller.
type Principal struct {
	// Tenant is the tenant that it belongs to.
	Tenant string `json:"tenant,omitzero"`
	// Subject is who holds the credential.
	Subject string `json:"subject,omitzero"`
	// Agent is the agent that calls; empty for people.
	Agent string `json:"agent,omitzero"`
	// Owner is the person that the agent works for.
	Owner string `json:"owner,omitzero"`
	// TokenID names the token that was presented, never its text.
	TokenID string `json:"token_id,omitzero"`
}

// Rule names a rule.
type Rule struct {
	// Document is the name of the document.
	Document string `json:"document,omitzero"`
	// Rule is the name of the rule, or `tools.` and the name of a tool entry.
	Rule string `json:"rule,omitzero"`
}

// Limit is a limit as it bore on a call.
type Limit struct {
	// Document is the name of the document that brings it.
	Document string `json:"document,omitzero"`
	// Rule is the name of the rule that brings it.
	Rule string `json:"rule,omitzero"`
	// Bucket is the identity of what was counted.
	Bucket string `json:"bucket,omitzero"`
	// Kind is how it counts, for example sliding_window.
	Kind string `json:"kind,omitzero"`
	// Max is how much fits, decimal.
	Max string `json:"max,omitzero"`
	// WindowS is the stretch of time that it looks at, in seconds; 0: none.
	WindowS float64 `json:"window_s,omitzero"`
	// Burst is how many may go at once before the pace holds; 0: it has none.
	Burst int64 `json:"burst,omitzero"`
	// Per is what the bucket is kept by.
	Per []string `json:"per,omitempty"`
	// Cap says whether it is the principal's cap over a limit kept by session.
	Cap bool `json:"cap,omitzero"`
	// Cost is what the call took of it, decimal; empty means 1.
	Cost string `json:"cost,omitzero"`
	// OnError is what it does where nobody is there to count it: deny or allow.
	OnError string `json:"on_error,omitzero"`
	// Settle is where in the result the real amount stands, a JSON Pointer; empty
	// where the reserved amount is the amount.
	Settle string `json:"settle,omitzero"`
	// Remaining is what was left afterwards, decimal; empty where nobody asked.
	Remaining string `json:"remaining,omitzero"`
	// SessionKey is which notion of session the bucket holds.
	SessionKey string `json:"session_key,omitzero"`
}

// Vote is what a person said of a call.
type Vote struct {
	// Subject is the person.
	Subject string `json:"subject,omitzero"`
	// Verdict is approve or deny.
	Verdict string `json:"verdict,omitzero"`
	// Time is when, by the approval service's clock.
	Time time.Time `json:"time,omitzero"`
	// Channel is how the vote came: token, slack or elicitation.
	Channel string `json:"channel,omitzero"`
	// Groups are those of the terms that the person was in.
	Groups []string `json:"groups,omitempty"`
	// External says that membership was read from an outside issuer's credential.
	External bool `json:"external,omitzero"`
	// Comment is why, in the person's words.
	Comment string `json:"comment,omitzero"`
}

// Why says why a segment was removed.
type Why string

// The reasons to remove a segment.
const (
	// WhySize says that its chain had no room left.
	WhySize Why = "size"
	// WhyAge says that its newest record was older than records are kept.
	WhyAge Why = "age"
	// WhyShare says that a principal was beyond its share of the room.
	WhyShare Why = "share"
)

// Pruned is a segment that was removed.
type Pruned struct {
	// File is its name.
	File string `json:"file,omitzero"`
	// First is the seq of its first record.
	First int64 `json:"first,omitzero"`
	// Last is the seq of its last record.
	Last int64 `json:"last,omitzero"`
	// Hash is the SHA-256 of that record's line, in hex.
	Hash string `json:"hash,omitzero"`
	// Bytes is its size.
	Bytes int64 `json:"bytes,omitzero"`
	// Why says why it went.
	Why Why `json:"why,omitzero"`
}
