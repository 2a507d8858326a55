package journal

import "time"

// Kind is the kind of a record. The zero value is never written.
type Kind string

// The values of [Kind].
const (
	// KindClaim says that an approved call is about to be claimed. It is written before the call's limits are
	// reserved, so every claim that a crash leaves open is recorded.
	KindClaim Kind = "claim"
	// KindSettled says that the approval service and the limiter know the result of an approved call. A replay has nothing
	// left to do for the call.
	KindSettled Kind = "settled"
	// KindIntent says that a call was allowed and is about to be sent.
	KindIntent Kind = "intent"
	// KindOutcome contains the result of a call. Its decision id is that of the call's intent.
	KindOutcome Kind = "outcome"
	// KindRefusal says that a call was refused.
	KindRefusal Kind = "refusal"
	// KindPassed counts messages of one principal, server and method that need no rule, such as ping.
	KindPassed Kind = "passed"
	// KindAdmission counts requests that were refused before authentication.
	KindAdmission Kind = "admission"
	// KindPruned names segments of its chain that were removed.
	KindPruned Kind = "pruned"
	// KindRecovery says that the journal had an incomplete end or lacked records when it was opened, or that it could
	// not be written for a while. It also says that the journal accepts records again.
	KindRecovery Kind = "recovery"
)

// ResultClass classifies the result of a call that was allowed. On an outcome, the zero value is recorded as
// [ResultUnknown].
type ResultClass string

// The values of [ResultClass].
const (
	// ResultOK says that the tool answered without an error.
	ResultOK ResultClass = "ok"
	// ResultToolError says that the tool answered with isError.
	ResultToolError ResultClass = "tool_error"
	// ResultProtocolError says that the server answered with a JSON-RPC error.
	ResultProtocolError ResultClass = "protocol_error"
	// ResultUnknown says that no usable answer was received. The call may have run.
	ResultUnknown ResultClass = "unknown"
	// ResultNeverSent says that the call was certainly not sent.
	ResultNeverSent ResultClass = "never_sent"
)

// Record is one record, which is one line of a segment. The order of the fields is their order in the file. Fields
// with the zero value are omitted in the file. A record contains no argument values, no tokens and no session handle;
// the caller that fills in the record ensures that.
//
// The journal sets Seq, Time, Prev, SealKey, Oldest, Kind, Build and CRC, and ignores a caller's values of these
// fields. Times are recorded in UTC.
type Record struct {
	// Seq is the number of the record in its chain, from 1, without gaps.
	Seq int64 `json:"seq,omitzero"`
	// Time is when the record was written.
	Time time.Time `json:"time,omitzero"`
	// Prev is the SHA-256 digest of the previous line of the chain, without the newline, in hex; 64 zeros on the
	// first record.
	Prev string `json:"prev,omitzero"`
	// SealKey is the public half of the key that signs heads, in hex; only on the first record of each segment.
	SealKey string `json:"seal_key,omitzero"`
	// Oldest is the seq of the chain's oldest stored record when the segment was begun; only on the first record of
	// each segment, otherwise 0.
	Oldest int64 `json:"oldest,omitzero"`
	// Kind is the kind of the record.
	Kind Kind `json:"kind"`

	// DecisionID is the id of the decision that the record belongs to. An intent and its outcome have the same id. It
	// is never empty on an intent, an outcome or a refusal.
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
	// Tool is the name of the tool, or of the prompt, task or resource that the method addresses.
	Tool string `json:"tool,omitzero"`
	// FromServer reports whether the message is a request from the server to the client.
	FromServer bool `json:"from_server,omitzero"`
	// DefinitionDigest is the digest of the tool's definition that the caller's session listed, in hex.
	DefinitionDigest string `json:"definition_digest,omitempty"`
	// Category and Risk are the tool's category and risk in the catalog; empty if the catalog did not know the tool.
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
	// Hidden reports whether the tool was missing in the caller's list, either because it was hidden from the caller
	// or because it does not exist.
	Hidden bool `json:"hidden,omitzero"`
	// Message is the text that the caller received.
	Message string `json:"message,omitzero"`
	// Limits are the limits that applied to the call.
	Limits []Limit `json:"limits,omitempty"`
	// ReservedAt is when the limits were reserved, by the limiter's clock.
	ReservedAt time.Time `json:"reserved_at,omitzero"`
	// LimitLeaseID is the lease of the reserved limits, on intents and outcomes; empty if nothing was reserved.
	LimitLeaseID string `json:"limit_lease_id,omitzero"`
	// SessionKey is what "per session" means for the call: run, session or principal.
	SessionKey string `json:"session_key,omitzero"`
	// IdempotencyKey is the key under which the limits of a claim are reserved.
	IdempotencyKey string `json:"idempotency_key,omitzero"`
	// ApprovalID is the approval that allowed the call, or that the call waits for.
	ApprovalID string `json:"approval_id,omitzero"`
	// Attempt is the number of the attempt to run the approved call, on claims, intents and outcomes.
	Attempt int32 `json:"attempt,omitzero"`
	// ApprovalDigest is the digest of the call that the approval is bound to, on claims and intents, in hex.
	ApprovalDigest string `json:"approval_digest,omitzero"`
	// Votes are the votes that allowed the call, oldest first, on intents. They are votes on the approval itself, or
	// on the approval whose grant covers the call.
	Votes []Vote `json:"votes,omitempty"`
	// Grant is the id of the approval whose grant covers the call, on claims and intents. It is empty if approvers
	// decided on this call itself.
	Grant string `json:"grant,omitzero"`

	// ArgumentsHMAC is the result of [Journal.HMAC] for the raw bytes of the arguments. For methods other than
	// tools/call it covers the params.
	ArgumentsHMAC string `json:"arguments_hmac,omitzero"`
	// RequestBytes is the size of the request.
	RequestBytes int64 `json:"request_bytes,omitzero"`
	// ResultBytes is the size of the result.
	ResultBytes int64 `json:"result_bytes,omitzero"`
	// ResultClass is the result of the call; only on outcomes.
	ResultClass ResultClass `json:"result_class,omitzero"`
	// UpstreamStatus is the HTTP status of the server's response; 0 if there was none.
	UpstreamStatus int `json:"upstream_status,omitzero"`
	// LatencyMS is the time from the last byte of the request to the last byte of the response, in milliseconds;
	// finite.
	LatencyMS float64 `json:"latency_ms,omitzero"`

	// Count is the number of requests that a record counts; 0 means one. On a recovery it is the number of lost
	// outcomes or, in the chain of refusals, of lost refusals; 0 then means none.
	Count int64 `json:"count,omitzero"`
	// Peer is the client address of counted refusals, without the port; "*" for all peers beyond the limit.
	Peer string `json:"peer,omitzero"`
	// Since is the beginning of the period that a record covers.
	Since time.Time `json:"since,omitzero"`
	// CutBytes is how many bytes a recovery has cut off the end of a segment.
	CutBytes int64 `json:"cut_bytes,omitzero"`
	// CutFile is the name of the file in the same folder that contains those bytes.
	CutFile string `json:"cut_file,omitzero"`
	// Pruned are the segments that were removed, oldest first; only on pruned records.
	Pruned []Pruned `json:"pruned,omitempty"`

	// Build is the version of the program that wrote the record.
	Build string `json:"build,omitzero"`
	// CRC is the CRC-32C of the line up to this member, in hex. It reveals damage to the newest record. The chain
	// can't reveal that, because no record follows.
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
	// WindowS is the length of the window, in seconds; 0 if the limit has no window.
	WindowS float64 `json:"window_s,omitzero"`
	// Burst is how many calls may be made at once before the rate applies; 0 if the limit has no burst.
	Burst int64 `json:"burst,omitzero"`
	// Per names the keys by which buckets are separated.
	Per []string `json:"per,omitempty"`
	// Cap reports whether this limit is the additional cap for all sessions of a principal that comes with a per-session
	// limit.
	Cap bool `json:"cap,omitzero"`
	// Cost is the amount that the call used, decimal; empty means 1.
	Cost string `json:"cost,omitzero"`
	// OnError is what happens if the limiter is unavailable: deny or allow.
	OnError string `json:"on_error,omitzero"`
	// Settle is a JSON Pointer to the actual amount in the result; empty if the reserved amount is final.
	Settle string `json:"settle,omitzero"`
	// Remaining is the amount left after the call, decimal; empty if it was not requested.
	Remaining string `json:"remaining,omitzero"`
	// SessionKey is what "per session" means for the bucket: run, session or principal.
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
	// Groups are the person's groups that the approval's terms name.
	Groups []string `json:"groups,omitempty"`
	// External reports whether the groups were read from a credential of an external issuer.
	External bool `json:"external,omitzero"`
	// Comment is the person's reason.
	Comment string `json:"comment,omitzero"`
}

// PruneReason is the reason why a segment was removed.
type PruneReason string

// The values of [PruneReason].
const (
	// PrunedForSize says that the chain was too large.
	PrunedForSize PruneReason = "size"
	// PrunedForAge says that the segment's newest record was older than the retention.
	PrunedForAge PruneReason = "age"
	// PrunedForQuota says that a principal had used its share of the capacity.
	PrunedForQuota PruneReason = "share"
)

// Pruned is a segment that was removed.
type Pruned struct {
	// File is the name of the file.
	File string `json:"file,omitzero"`
	// First is the seq of the segment's first record.
	First int64 `json:"first,omitzero"`
	// Last is the seq of the segment's last record.
	Last int64 `json:"last,omitzero"`
	// Hash is the SHA-256 digest of the last record's line, in hex.
	Hash string `json:"hash,omitzero"`
	// Bytes is the size of the segment.
	Bytes int64 `json:"bytes,omitzero"`
	// Reason is the reason why the segment was removed.
	Reason PruneReason `json:"why,omitzero"`
}
