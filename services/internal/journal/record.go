package journal

import "time"

// Kind says what a record reports. The zero value is never written.
type Kind string

const (
	// KindClaim means that an approved call is about to be claimed. The record is written before the call's limits are
	// reserved, so that there is a record of every claim that a crash leaves incomplete.
	KindClaim Kind = "claim"
	// KindSettled means that the approval service and the limiter know the result of an approved call. When the journal
	// is replayed, nothing needs to be done for the call.
	KindSettled Kind = "settled"
	// KindIntent means that a call was allowed and is about to be sent.
	KindIntent Kind = "intent"
	// KindOutcome is the result of a call. The record has the same decision id as the call's intent.
	KindOutcome Kind = "outcome"
	// KindRefusal means that a call was refused.
	KindRefusal Kind = "refusal"
	// KindPassed counts messages that need no rule, such as pings, for one principal, server and method.
	KindPassed Kind = "passed"
	// KindAdmission counts requests that were refused before authentication.
	KindAdmission Kind = "admission"
	// KindPruned names segments that were removed from the chain.
	KindPruned Kind = "pruned"
	// KindRecovery means that the journal accepts records again. Previously, it had an incomplete end or missing
	// records when it was opened, or it could not be written for some time.
	KindRecovery Kind = "recovery"
)

// ResultClass classifies the result of a call that was allowed. In an outcome, the zero value is recorded as
// [ResultUnknown].
type ResultClass string

const (
	// ResultOK means that the tool responded without an error.
	ResultOK ResultClass = "ok"
	// ResultToolError means that the tool's result has isError set.
	ResultToolError ResultClass = "tool_error"
	// ResultProtocolError means that the server responded with a JSON-RPC error.
	ResultProtocolError ResultClass = "protocol_error"
	// ResultUnknown means that no usable response was received. The call might have run.
	ResultUnknown ResultClass = "unknown"
	// ResultHostExecuted means that the gateway allowed the call and that the client itself executes it.
	ResultHostExecuted ResultClass = "host_executed"
	// ResultNeverSent means that the call was certainly not sent.
	ResultNeverSent ResultClass = "never_sent"
)

// Record is the content of one line of a segment. The fields have the same order as in the file. The file omits fields
// with the zero value. A record must not contain argument values, tokens or session handles. The code that sets the
// fields is responsible for this.
//
// The journal sets Seq, Time, Prev, SealKey, Oldest, Kind, Build and CRC, and ignores the values of these fields that a
// caller sets. Times are recorded in UTC.
type Record struct {
	// Seq is the sequence number of the record in its chain. The numbers begin at 1 and have no gaps.
	Seq int64 `json:"seq,omitzero"`
	// Time is the time at which the record was written.
	Time time.Time `json:"time,omitzero"`
	// Prev is the SHA-256 digest of the previous line of the chain, without the newline, in hex. In the first record,
	// it consists of 64 zeros.
	Prev string `json:"prev,omitzero"`
	// SealKey is the public key, in hex, that verifies the signatures of heads. Only the first record of each segment
	// has it.
	SealKey string `json:"seal_key,omitzero"`
	// Oldest is the sequence number of the oldest record of the chain that was stored when the segment was started. Only
	// the first record of each segment has it.
	Oldest int64 `json:"oldest,omitzero"`
	Kind   Kind  `json:"kind"`

	// DecisionID is the id of the decision to which the record belongs. An intent and its outcome have the same id. It is
	// never empty in an intent, an outcome or a refusal.
	DecisionID string `json:"decision_id,omitzero"`
	// TraceID is the trace id of the call, as 32 hexadecimal digits.
	TraceID string `json:"trace_id,omitzero"`
	// Principal is the principal on whose behalf the call is made. Its fields are members of the record itself.
	Principal
	// Chain contains the principals on whose behalf the principal acts, the closest first.
	Chain []Principal `json:"chain,omitempty"`
	// Session is a digest of the session's handle.
	Session string `json:"session,omitzero"`
	// Run is the id of the run that the client declared.
	Run string `json:"run,omitzero"`
	// Server is the configured name of the MCP server.
	Server string `json:"server,omitzero"`
	// Method is the MCP method.
	Method string `json:"method,omitzero"`
	// Tool is the name of the tool, or of the prompt, task or resource that the method addresses.
	Tool string `json:"tool,omitzero"`
	// FromServer is true if the message is a request from the server to the client.
	FromServer bool `json:"from_server,omitzero"`
	// DefinitionDigest is the digest, in hex, of the tool's definition in the list that the caller's session last
	// received.
	DefinitionDigest string `json:"definition_digest,omitempty"`
	// Category and Risk are the tool's category and risk in the catalog. They are empty if the catalog did not contain the
	// tool.
	Category string `json:"category,omitzero"`
	Risk     string `json:"risk,omitzero"`

	// PolicyRevision is the id, in hex, of the policy revision with which the call was evaluated.
	PolicyRevision string `json:"policy_revision,omitzero"`
	// Rule is the rule that determined the effect. It is zero if a default determined the effect.
	Rule Rule `json:"rule,omitzero"`
	// Effect is the effect that was applied: allow, deny or require_approval.
	Effect string `json:"effect,omitzero"`
	// Code is the reason for a refusal, as clients see it. It is empty if the call was executed.
	Code string `json:"code,omitzero"`
	// Hidden is true if the caller's list of tools did not contain the tool, because the tool was hidden from the
	// caller or does not exist.
	Hidden bool `json:"hidden,omitzero"`
	// Message is the message that the caller received.
	Message string `json:"message,omitzero"`
	// Observed describes what would have happened to the call if every rule had been enforced instead of only recorded
	// (mode: observe). Only intents and refusals have it. It is zero if the result would have been the same.
	Observed Observed `json:"observed,omitzero"`
	// Limits are the limits that applied to the call.
	Limits []Limit `json:"limits,omitempty"`
	// ReservedAt is the time at which the limits were reserved, on the limiter's clock.
	ReservedAt time.Time `json:"reserved_at,omitzero"`
	// LimitLeaseID is the id of the lease that reserved the limits. Only intents and outcomes have it. It is empty if no
	// limit was reserved.
	LimitLeaseID string `json:"limit_lease_id,omitzero"`
	// SessionKey specifies the meaning of "per session" for the call: run, session or principal.
	SessionKey string `json:"session_key,omitzero"`
	// IdempotencyKey is the key with which the limits of a claim are reserved.
	IdempotencyKey string `json:"idempotency_key,omitzero"`
	// ApprovalID is the id of the approval that allowed the call, or of the approval for which the call is waiting.
	ApprovalID string `json:"approval_id,omitzero"`
	// Attempt is the number of the attempt to execute the approved call. Only claims, intents and outcomes have it.
	Attempt int32 `json:"attempt,omitzero"`
	// ApprovalDigest is the digest of the call to which the approval is bound, in hex. Only claims and intents have it.
	ApprovalDigest string `json:"approval_digest,omitzero"`
	// Votes are the votes that allowed the call, oldest first. Only intents have them. They are votes on the approval
	// itself, or on the approval whose grant covers the call.
	Votes []Vote `json:"votes,omitempty"`
	// Grant is the id of the approval whose grant covers the call. Only claims and intents have it. It is empty if
	// people voted on this call itself.
	Grant string `json:"grant,omitzero"`

	// ArgumentsHMAC is the result of [Journal.HMAC] for the raw bytes of the arguments. For methods other than
	// tools/call, the raw bytes of the params are used.
	ArgumentsHMAC string `json:"arguments_hmac,omitzero"`
	// RequestBytes is the size of the request, in bytes. If redactions changed the arguments, it is the size after the
	// change. If the record counts several messages, it is the total size of these messages.
	RequestBytes int64 `json:"request_bytes,omitzero"`
	// ResultBytes is the size of the result, in bytes.
	ResultBytes int64 `json:"result_bytes,omitzero"`
	// ResultClass is the class of the call's result. Only outcomes have it.
	ResultClass ResultClass `json:"result_class,omitzero"`
	// UpstreamStatus is the HTTP status of the server's response, or 0 if there was none.
	UpstreamStatus int `json:"upstream_status,omitzero"`
	// Redacted contains, for each reason, the number of values that redactions replaced. Only outcomes have it.
	Redacted []Redacted `json:"redacted,omitempty"`
	// Recorded describes the stored copy of the arguments. Only intents have it. It is zero if no copy was stored.
	Recorded Recorded `json:"recorded_arguments,omitzero"`
	// LatencyMS is the time from the last byte of the request to the last byte of the response, in milliseconds. It must
	// be finite.
	LatencyMS float64 `json:"latency_ms,omitzero"`

	// Count is the number of requests that the record counts. The value 0 means one. In a recovery record, Count is the
	// number of lost outcomes or, in the chain of refusals, of lost refusals. In such a record, 0 means that none were
	// lost.
	Count int64 `json:"count,omitzero"`
	// Peer is the address of the client whose refused requests are counted, without the port. It is "*" for all peers
	// beyond the limit of separately counted peers.
	Peer string `json:"peer,omitzero"`
	// Since is the beginning of the period that a record covers.
	Since time.Time `json:"since,omitzero"`
	// CutBytes is the number of bytes that were removed from the end of a segment when the journal was opened.
	CutBytes int64 `json:"cut_bytes,omitzero"`
	// CutFile is the name of the file, in the journal's directory, that contains the removed bytes (see CutBytes).
	CutFile string `json:"cut_file,omitzero"`
	// Pruned contains the removed segments, oldest first. Only records of the kind [KindPruned] have it.
	Pruned []Pruned `json:"pruned,omitempty"`

	// Build is the version of the program that wrote the record.
	Build string `json:"build,omitzero"`
	// CRC is the CRC-32C of the line up to this member, in hex. It reveals damage to the newest record. The hash chain
	// can't reveal such damage, because no record follows.
	CRC string `json:"crc,omitzero"`
}

// Principal is a caller, or a principal on whose behalf a caller acts.
type Principal struct {
	// Tenant is the tenant to which the principal belongs.
	Tenant string `json:"tenant,omitzero"`
	// Subject is the holder of the credential.
	Subject string `json:"subject,omitzero"`
	// Agent is the name of the agent that makes the call. It is empty if the principal is a person.
	Agent string `json:"agent,omitzero"`
	// Owner is the person for whom the agent works.
	Owner string `json:"owner,omitzero"`
	// Person is the person whose accounts at servers the agent uses. It is empty if there is none.
	Person string `json:"person,omitzero"`
	// TokenID is the id of the presented token. The token's secret is never recorded.
	TokenID string `json:"token_id,omitzero"`
	// Issuer is the name of the issuer of the presented JWT. It is empty if a token of the mesh was presented.
	Issuer string `json:"issuer,omitzero"`
	// Client is the OAuth client of the presented JWT.
	Client string `json:"client,omitzero"`
}

// Redacted is the number of values that redactions replaced for one reason.
type Redacted struct {
	// Name is the reason. It is the name of a detector, or "path" if a path selected the values. It is "whole" if whole
	// results or messages were replaced or dropped, or if members that JSON-RPC does not define were removed from
	// messages.
	Name string `json:"name,omitzero"`
	// Count is the number of values.
	Count int64 `json:"count,omitzero"`
}

// Recorded describes a copy of a call's arguments that is stored outside of the journal.
type Recorded struct {
	// Digest is the SHA-256 of the encrypted copy, in hex.
	Digest string `json:"digest,omitzero"`
	// Place is the location of the copy in the files of the gateway.
	Place string `json:"place,omitzero"`
	// Bytes is the size of the copy before encryption.
	Bytes int64 `json:"bytes,omitzero"`
	// IsRedacted is true if the copy differs from the caller's arguments because values were replaced.
	IsRedacted bool `json:"redacted,omitzero"`
}

// Rule names a rule of a policy document.
type Rule struct {
	// Document is the name of the document.
	Document string `json:"document,omitzero"`
	// Rule is the name of the rule. For an entry under `tools`, it is `tools.` followed by the name of the entry.
	Rule string `json:"rule,omitzero"`
}

// Observed describes what would have happened to a call if every rule were enforced.
type Observed struct {
	// Effect is would_allow, would_deny, would_require_approval or would_limit.
	Effect string `json:"effect,omitzero"`
	// Code is the reason why the call would have been refused, limited or held for approval.
	Code string `json:"code,omitzero"`
	// Rule is the rule that would have determined the effect. It is zero if a default would have determined the effect.
	Rule Rule `json:"rule,omitzero"`
}

// Limit is a limit that applied to a call.
type Limit struct {
	// Document is the name of the document that contains the limit.
	Document string `json:"document,omitzero"`
	// Rule is the name of the rule that contains the limit.
	Rule string `json:"rule,omitzero"`
	// Bucket is the id of the bucket that was counted.
	Bucket string `json:"bucket,omitzero"`
	// Kind is the kind of the limit, for example sliding_window.
	Kind string `json:"kind,omitzero"`
	// Max is the capacity of the bucket as a decimal number.
	Max string `json:"max,omitzero"`
	// WindowS is the length of the window, in seconds. It is 0 if the limit has no window.
	WindowS float64 `json:"window_s,omitzero"`
	// Burst is the number of calls that may be made at once before the rate applies. It is 0 if the limit has no burst.
	Burst int64 `json:"burst,omitzero"`
	// Per contains the names of the keys by which buckets are separated.
	Per []string `json:"per,omitempty"`
	// Cap is true if the limit applies to all sessions of a principal together. Such a limit accompanies a limit per
	// session.
	Cap bool `json:"cap,omitzero"`
	// Cost is the amount that the call used, as a decimal number. An empty string means 1.
	Cost string `json:"cost,omitzero"`
	// OnError is the effect if the limiter is unavailable: deny or allow.
	OnError string `json:"on_error,omitzero"`
	// Settle is a JSON Pointer to the actual amount in the call's result. It is empty if the reserved amount is final.
	Settle string `json:"settle,omitzero"`
	// Remaining is the amount that was left after the call, as a decimal number. It is empty if this amount was not
	// requested.
	Remaining string `json:"remaining,omitzero"`
	// SessionKey specifies the meaning of "per session" for the bucket: run, session or principal.
	SessionKey string `json:"session_key,omitzero"`
}

// Vote is a person's vote on a call.
type Vote struct {
	Subject string `json:"subject,omitzero"`
	// Verdict is approve or deny.
	Verdict string `json:"verdict,omitzero"`
	// Time is the time of the vote on the approval service's clock.
	Time time.Time `json:"time,omitzero"`
	// Channel is the channel of the vote: token, slack or elicitation.
	Channel string `json:"channel,omitzero"`
	// Groups lists the person's groups that the approval's conditions (its terms) name.
	Groups []string `json:"groups,omitempty"`
	// External is true if the groups come from a credential of an external issuer.
	External bool `json:"external,omitzero"`
	// Comment is the reason that the person gave for the vote.
	Comment string `json:"comment,omitzero"`
}

// PruneReason is the reason why a segment was removed.
type PruneReason string

const (
	// PrunedForSize means that the chain was too large.
	PrunedForSize PruneReason = "size"
	// PrunedForAge means that the segment's newest record was older than the maximum age.
	PrunedForAge PruneReason = "age"
	// PrunedForQuota means that a principal had used its share of the capacity.
	PrunedForQuota PruneReason = "share"
)

// Pruned describes a removed segment.
type Pruned struct {
	// File is the name of the file.
	File string `json:"file,omitzero"`
	// First is the sequence number of the segment's first record.
	First int64 `json:"first,omitzero"`
	// Last is the sequence number of the segment's last record.
	Last int64 `json:"last,omitzero"`
	// Hash is the SHA-256 digest of the last record's line, in hex.
	Hash string `json:"hash,omitzero"`
	// Bytes is the size of the segment.
	Bytes int64 `json:"bytes,omitzero"`
	// Reason is the reason why the segment was removed.
	Reason PruneReason `json:"why,omitzero"`
}
