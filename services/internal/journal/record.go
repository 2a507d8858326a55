package journal

import "time"

// Kind is the kind of a record. The zero value is never written.
type Kind string

// The kinds of records.
const (
	// KindClaim says that an approved call is about to be claimed. It is written before the call's limits are
	// reserved, so that every claim that a crash leaves is on record.
	KindClaim Kind = "claim"
	// KindSettled says that the approval service and the limiter know the result of an approved call: a replay has
	// nothing to do for it.
	KindSettled Kind = "settled"
	// KindIntent says that a call was allowed and is about to be sent.
	KindIntent Kind = "intent"
	// KindOutcome contains the result of a call; its decision id is that of the intent.
	KindOutcome Kind = "outcome"
	// KindRefusal says that a call was refused.
	KindRefusal Kind = "refusal"
	// KindPassed counts messages of one principal, server and method that need no rule, such as ping.
	KindPassed Kind = "passed"
	// KindAdmission counts requests that were refused before authentication.
	KindAdmission Kind = "admission"
	// KindPruned names segments of its chain that were removed.
	KindPruned Kind = "pruned"
	// KindRecovery says that at a start the journal was torn or lacked records, or that it could not be written for a
	// while, and that it works again.
	KindRecovery Kind = "recovery"
)

// ResultClass is the result of a call that was to be sent. On an outcome the zero value is recorded as
// [ResultUnknown].
type ResultClass string

// The classes of results.
const (
	// ResultOK says that the tool answered without an error.
	ResultOK ResultClass = "ok"
	// ResultToolError says that the tool answered with isError.
	ResultToolError ResultClass = "tool_error"
	// ResultProtocolError says that the server answered with a JSON-RPC error.
	ResultProtocolError ResultClass = "protocol_error"
	// ResultUnknown says that no usable answer was received: the call may have run.
	ResultUnknown ResultClass = "unknown"
	// ResultNeverSent says that the call was certainly not sent.
	ResultNeverSent ResultClass = "never_sent"
)

// Record is one record: one line of a segment. The order of its fields is the order on disk, where fields with the
// zero value are left out. It contains no argument values, no tokens and no session handle: the caller that fills it
// in ensures that.
//
// Seq, Time, Prev, SealKey, Oldest, Kind, Build and CRC are set by the journal: values from a caller are ignored.
// Times are recorded in UTC.
type Record struct {
	// Seq is the number of the record in its chain, from 1, without gaps.
	Seq int64 `json:"seq,omitzero"`
	// Time is when the record was written.
	Time time.Time `json:"time,omitzero"`
	// Prev is the SHA-256 of the line before it in its chain, without the newline, in hex; 64 zeros on the first
	// record.
	Prev string `json:"prev,omitzero"`
	// SealKey is the public half of the key that seals heads, in hex; only on the first record of each segment.
	SealKey string `json:"seal_key,omitzero"`
	// Oldest is the seq of the oldest record of the chain that was stored when this segment was begun; only on the
	// first record of each segment, otherwise 0.
	Oldest int64 `json:"oldest,omitzero"`
	// Kind is the kind of the record.
	Kind Kind `json:"kind"`

	// DecisionID is the id of the decision that the record belongs to; an intent and its outcome have the same. Never
	// empty on an intent, an outcome or a refusal.
	DecisionID string `json:"decision_id,omitzero"`
	// TraceID is the trace of the call: hex, 32 characters.
	TraceID string `json:"trace_id,omitzero"`
	// Principal is the principal on whose behalf the call is made; its fields are members of the record itself.
	Principal
	// Chain contains the principals on whose behalf the principal acts, nearest first.
	Chain []Principal `json:"chain,omitempty"`
	// Session is a digest of the session's handle.
	Session string `json:"session,omitzero"`
	// Run is the run that the client declared.
	Run string `json:"run,omitzero"`
	// Server is the configured name of the MCP server.
	Server string `json:"server,omitzero"`
	// Method is the MCP method.
	Method string `json:"method,omitzero"`
	// Tool is the name of the tool, or of what else the method addresses.
	Tool string `json:"tool,omitzero"`
	// FromServer reports whether the message is a request of the server to the client.
	FromServer bool `json:"from_server,omitzero"`
	// DefinitionDigest is the digest of the tool's definition that the caller's session listed, in hex.
	DefinitionDigest string `json:"definition_digest,omitempty"`
	// Category and Risk are those of the tool in the catalog; empty if the catalog did not know the tool.
	Category string `json:"category,omitzero"`
	Risk     string `json:"risk,omitzero"`

	// PolicyRevision is the revision that decided, in hex.
	PolicyRevision string `json:"policy_revision,omitzero"`
	// Rule is the rule that decided; zero if a default did.
	Rule Rule `json:"rule,omitzero"`
	// Effect is the effect that was applied: allow, deny or require_approval.
	Effect string `json:"effect,omitzero"`
	// Code is the reason of a refusal, as clients see it; empty if the call ran.
	Code string `json:"code,omitzero"`
	// Hidden reports whether the tool was missing in the caller's list: it was hidden from the caller, or does not
	// exist.
	Hidden bool `json:"hidden,omitzero"`
	// Message is the text that the caller saw.
	Message string `json:"message,omitzero"`
	// Limits are the limits that applied to the call.
	Limits []Limit `json:"limits,omitempty"`
	// ReservedAt is when the limits were reserved, by the limiter's clock.
	ReservedAt time.Time `json:"reserved_at,omitzero"`
	// LimitLeaseID is the lease of those limits, on intents and outcomes; empty if nothing was reserved.
	LimitLeaseID string `json:"limit_lease_id,omitzero"`
	// SessionKey is what "per session" referred to: run, session or principal.
	SessionKey string `json:"session_key,omitzero"`
	// IdempotencyKey is the key under which the limits of a claim are reserved.
	IdempotencyKey string `json:"idempotency_key,omitzero"`
	// ApprovalID is the approval that allowed the call, or that the call waits for.
	ApprovalID string `json:"approval_id,omitzero"`
	// Attempt is the attempt of that approval, on claims, intents and outcomes.
	Attempt int32 `json:"attempt,omitzero"`
	// ApprovalDigest is the digest of what the approval is bound to, on claims and intents, in hex.
	ApprovalDigest string `json:"approval_digest,omitzero"`
	// Votes are the votes that allowed the call, oldest first, on intents: of the approval itself or of the approval
	// whose grant covers the call.
	Votes []Vote `json:"votes,omitempty"`
	// Grant is the approval whose grant covers the call, on claims and intents; empty if approvers decided on this
	// call itself.
	Grant string `json:"grant,omitzero"`

	// ArgumentsHMAC is the result of [Journal.HMAC] for the raw bytes of the arguments; for methods other than
	// tools/call, of the params.
	ArgumentsHMAC string `json:"arguments_hmac,omitzero"`
	// RequestBytes is the size of the request.
	RequestBytes int64 `json:"request_bytes,omitzero"`
	// ResultBytes is the size of the result.
	ResultBytes int64 `json:"result_bytes,omitzero"`
	// ResultClass is the result of the call; only on outcomes.
	ResultClass ResultClass `json:"result_class,omitzero"`
	// UpstreamStatus is the HTTP status of the server's answer; 0 if there was none.
	UpstreamStatus int `json:"upstream_status,omitzero"`
	// LatencyMS is the time from the request's last byte to the answer's last byte, in milliseconds; finite.
	LatencyMS float64 `json:"latency_ms,omitzero"`

	// Count is the number of requests that a record counts; 0 means one. On a recovery it is the number of lost
	// outcomes, or in the chain of refusals of lost refusals, and 0 means none.
	Count int64 `json:"count,omitzero"`
	// Peer is the client address of counted refusals, without the port; "*" for all peers beyond the limit.
	Peer string `json:"peer,omitzero"`
	// Since is the beginning of the period that a record covers.
	Since time.Time `json:"since,omitzero"`
	// CutBytes is how many bytes a recovery cut off the end of a segment.
	CutBytes int64 `json:"cut_bytes,omitzero"`
	// CutFile is the name of the file in the same folder that contains those bytes.
	CutFile string `json:"cut_file,omitzero"`
	// Pruned are the segments that were removed, oldest first; only on pruned records.
	Pruned []Pruned `json:"pruned,omitempty"`

	// Build is the version of the program that wrote the record.
	Build string `json:"build,omitzero"`
	// CRC is the CRC-32C of the line up to this member, in hex. It shows damage to the newest record, which the chain
	// can't show because no record follows.
	CRC string `json:"crc,omitzero"`
}

// Principal is a caller, or a principal on whose behalf a caller acts.
type Principal struct {
	// Tenant is the tenant that the principal belongs to.
	Tenant string `json:"tenant,omitzero"`
	// Subject is the holder of the credential.
	Subject string `json:"subject,omitzero"`
	// Agent is the agent that calls; empty for people.
	Agent string `json:"agent,omitzero"`
	// Owner is the person that the agent works for.
	Owner string `json:"owner,omitzero"`
	// TokenID is the id of the presented token, never its text.
	TokenID string `json:"token_id,omitzero"`
}

// Rule names a rule.
type Rule struct {
	// Document is the name of the document.
	Document string `json:"document,omitzero"`
	// Rule is the name of the rule, or `tools.` and the name of a tool entry.
	Rule string `json:"rule,omitzero"`
}

// Limit is a limit as it applied to a call.
type Limit struct {
	// Document is the name of the document that contains the limit.
	Document string `json:"document,omitzero"`
	// Rule is the name of the rule that contains the limit.
	Rule string `json:"rule,omitzero"`
	// Bucket is the identity of the bucket that was counted.
	Bucket string `json:"bucket,omitzero"`
	// Kind is the kind of the limit, for example sliding_window.
	Kind string `json:"kind,omitzero"`
	// Max is the capacity, decimal.
	Max string `json:"max,omitzero"`
	// WindowS is the length of the window, in seconds; 0: none.
	WindowS float64 `json:"window_s,omitzero"`
	// Burst is how many calls may be made at once before the rate applies; 0: none.
	Burst int64 `json:"burst,omitzero"`
	// Per names the keys that buckets are separated by.
	Per []string `json:"per,omitempty"`
	// Cap reports whether this is the principal's cap over a limit per session.
	Cap bool `json:"cap,omitzero"`
	// Cost is the amount that the call took, decimal; empty means 1.
	Cost string `json:"cost,omitzero"`
	// OnError is what happens if the limiter is unavailable: deny or allow.
	OnError string `json:"on_error,omitzero"`
	// Settle is a JSON Pointer to the actual amount in the result; empty if the reserved amount is final.
	Settle string `json:"settle,omitzero"`
	// Remaining is the amount left afterwards, decimal; empty if it was not asked for.
	Remaining string `json:"remaining,omitzero"`
	// SessionKey is what "per session" referred to in the bucket: run, session or principal.
	SessionKey string `json:"session_key,omitzero"`
}

// Vote is a person's vote on a call.
type Vote struct {
	// Subject is the person.
	Subject string `json:"subject,omitzero"`
	// Verdict is approve or deny.
	Verdict string `json:"verdict,omitzero"`
	// Time is when the vote was cast, by the approval service's clock.
	Time time.Time `json:"time,omitzero"`
	// Channel is the channel of the vote: token, slack or elicitation.
	Channel string `json:"channel,omitzero"`
	// Groups are the groups named by the approval's terms that the person was in.
	Groups []string `json:"groups,omitempty"`
	// External reports whether the groups were read from an external issuer's credential.
	External bool `json:"external,omitzero"`
	// Comment is the person's reason.
	Comment string `json:"comment,omitzero"`
}

// Why is the reason to remove a segment.
type Why string

// The reasons to remove a segment.
const (
	// WhySize says that its chain was too large.
	WhySize Why = "size"
	// WhyAge says that its newest record was older than the retention.
	WhyAge Why = "age"
	// WhyShare says that a principal had used its share of the capacity.
	WhyShare Why = "share"
)

// Pruned is a segment that was removed.
type Pruned struct {
	// File is the name of the file.
	File string `json:"file,omitzero"`
	// First is the seq of its first record.
	First int64 `json:"first,omitzero"`
	// Last is the seq of its last record.
	Last int64 `json:"last,omitzero"`
	// Hash is the SHA-256 of the last record's line, in hex.
	Hash string `json:"hash,omitzero"`
	// Bytes is its size.
	Bytes int64 `json:"bytes,omitzero"`
	// Why is the reason why it was removed.
	Why Why `json:"why,omitzero"`
}
