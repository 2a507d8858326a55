package journal

import (
	"encoding/hex"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// ToProto converts a record to its protobuf message, for clients that read records over gRPC. The message contains all
// fields except the CRC.
func ToProto(r *Record) *gatewayv1.Record {
	out := &gatewayv1.Record{
		Kind:     value[gatewayv1.RecordKind](gatewayv1.RecordKind_value, "RECORD_KIND_", string(r.Kind)),
		Sequence: r.Seq, Time: timestamppb.New(r.Time), PreviousHash: r.Prev, SealKey: r.SealKey, Oldest: r.Oldest,
		DecisionId: r.DecisionID, TraceId: r.TraceID,
		Principal: toPrincipal(r.Principal), Server: r.Server, Method: r.Method, Tool: r.Tool, FromServer: r.FromServer,
		DefinitionDigest: unhex(r.DefinitionDigest), Category: value[mcpv1.Category](mcpv1.Category_value, "CATEGORY_", r.Category),
		Risk: value[policyv1.Risk](policyv1.Risk_value, "RISK_", r.Risk), PolicyRevision: r.PolicyRevision,
		Effect: value[policyv1.Effect](policyv1.Effect_value, "EFFECT_", r.Effect), Code: CodeOf(r.Code), Hidden: r.Hidden, Message: r.Message,
		Reserved: timestampOf(r.ReservedAt), LimitLeaseId: r.LimitLeaseID, IdempotencyKey: r.IdempotencyKey,
		SessionKey: value[policyv1.SessionKey](policyv1.SessionKey_value, "SESSION_KEY_", r.SessionKey),
		ApprovalId: r.ApprovalID, Attempt: r.Attempt, ApprovalDigest: unhex(r.ApprovalDigest), Grant: r.Grant,
		ArgumentsHmac: unhex(r.ArgumentsHMAC), RequestBytes: r.RequestBytes, ResultBytes: r.ResultBytes,
		Result:         value[gatewayv1.ResultClass](gatewayv1.ResultClass_value, "RESULT_CLASS_", string(r.ResultClass)),
		UpstreamStatus: int32(r.UpstreamStatus), Count: r.Count, Peer: r.Peer, Since: timestampOf(r.Since),
		CutBytes: r.CutBytes, CutFile: r.CutFile, Build: r.Build,
		Limits: convertAll(r.Limits, toLimit), Votes: convertAll(r.Votes, toVote), Pruned: convertAll(r.Pruned, toPruned),
		Redacted: convertAll(r.Redacted, toRedacted), RecordedArguments: toRecorded(r.Recorded),
	}
	if r.Kind != KindRecovery { // a recovery counts lost outcomes, possibly 0
		out.Count = max(r.Count, 1)
	}
	out.Principal.Session, out.Principal.Run, out.Principal.Chain = r.Session, r.Run, convertAll(r.Chain, toPrincipal)
	out.Rule, out.Observed = toRule(r.Rule), toObserved(r.Observed)
	if r.LatencyMS > 0 {
		out.Latency = durationpb.New(time.Duration(r.LatencyMS * float64(time.Millisecond)))
	}
	return out
}

// FromProto converts a protobuf message to a record. The result equals the record in the file, except that the CRC is
// empty.
func FromProto(r *gatewayv1.Record) Record {
	p := r.GetPrincipal()
	out := Record{
		Kind: Kind(enum.NameOrEmpty(r.GetKind())),
		Seq:  r.GetSequence(), Time: r.GetTime().AsTime(), Prev: r.GetPreviousHash(), SealKey: r.GetSealKey(), Oldest: r.GetOldest(),
		DecisionID: r.GetDecisionId(), TraceID: r.GetTraceId(),
		Principal: fromPrincipal(p), Chain: convertAll(p.GetChain(), fromPrincipal), Session: p.GetSession(), Run: p.GetRun(),
		Server: r.GetServer(), Method: r.GetMethod(), Tool: r.GetTool(), FromServer: r.GetFromServer(),
		DefinitionDigest: hex.EncodeToString(r.GetDefinitionDigest()), Category: enum.NameOrEmpty(r.GetCategory()), Risk: enum.NameOrEmpty(r.GetRisk()), PolicyRevision: r.GetPolicyRevision(),
		Rule: fromRule(r.GetRule()), Observed: fromObserved(r.GetObserved()),
		Effect: enum.NameOrEmpty(r.GetEffect()), Code: enum.NameOrEmpty(r.GetCode()), Hidden: r.GetHidden(), Message: r.GetMessage(),
		Limits: convertAll(r.GetLimits(), fromLimit), ReservedAt: timeOf(r.GetReserved()), LimitLeaseID: r.GetLimitLeaseId(), IdempotencyKey: r.GetIdempotencyKey(),
		SessionKey: enum.NameOrEmpty(r.GetSessionKey()),
		ApprovalID: r.GetApprovalId(), Attempt: r.GetAttempt(), ApprovalDigest: hex.EncodeToString(r.GetApprovalDigest()),
		Votes: convertAll(r.GetVotes(), FromVote), Grant: r.GetGrant(),
		ArgumentsHMAC: hex.EncodeToString(r.GetArgumentsHmac()), RequestBytes: r.GetRequestBytes(), ResultBytes: r.GetResultBytes(),
		ResultClass: ResultClass(enum.NameOrEmpty(r.GetResult())), UpstreamStatus: int(r.GetUpstreamStatus()),
		LatencyMS: float64(r.GetLatency().AsDuration()) / float64(time.Millisecond),
		Peer:      r.GetPeer(), Since: timeOf(r.GetSince()), CutBytes: r.GetCutBytes(), CutFile: r.GetCutFile(),
		Pruned: convertAll(r.GetPruned(), fromPruned), Build: r.GetBuild(), Redacted: convertAll(r.GetRedacted(), fromRedacted),
		Recorded: fromRecorded(r.GetRecordedArguments()),
	}
	if out.Kind == KindAdmission || out.Kind == KindPassed || out.Kind == KindRecovery || r.GetCount() > 1 { // records of other kinds omit the count 1
		out.Count = r.GetCount()
	}
	return out
}

func toPrincipal(p Principal) *identityv1.Principal {
	return &identityv1.Principal{
		Tenant: p.Tenant, Subject: p.Subject, Agent: p.Agent, Owner: p.Owner, Person: p.Person, TokenId: p.TokenID, Issuer: p.Issuer, Client: p.Client,
	}
}

func fromPrincipal(p *identityv1.Principal) Principal {
	return Principal{
		Tenant: p.GetTenant(), Subject: p.GetSubject(), Agent: p.GetAgent(), Owner: p.GetOwner(), Person: p.GetPerson(), TokenID: p.GetTokenId(),
		Issuer: p.GetIssuer(), Client: p.GetClient(),
	}
}

func toRule(r Rule) *policyv1.RuleRef {
	if r == (Rule{}) {
		return nil
	}
	return &policyv1.RuleRef{Document: r.Document, Rule: r.Rule}
}

func fromRule(r *policyv1.RuleRef) Rule {
	return Rule{Document: r.GetDocument(), Rule: r.GetRule()}
}

func toObserved(o Observed) *gatewayv1.ObservedDecision {
	if o == (Observed{}) {
		return nil
	}
	return &gatewayv1.ObservedDecision{
		Effect: value[gatewayv1.ObservedEffect](gatewayv1.ObservedEffect_value, "OBSERVED_EFFECT_", o.Effect),
		Code:   CodeOf(o.Code), Rule: toRule(o.Rule),
	}
}

func fromObserved(o *gatewayv1.ObservedDecision) Observed {
	return Observed{Effect: enum.NameOrEmpty(o.GetEffect()), Code: enum.NameOrEmpty(o.GetCode()), Rule: fromRule(o.GetRule())}
}

func toLimit(l Limit) *gatewayv1.LimitRecord {
	return &gatewayv1.LimitRecord{Remaining: l.Remaining, Limit: &policyv1.RuleLimit{
		Rule: &policyv1.RuleRef{Document: l.Document, Rule: l.Rule},
		Limit: &ratelimitv1.Limit{
			Bucket: l.Bucket,
			Kind:   value[ratelimitv1.LimitKind](ratelimitv1.LimitKind_value, "LIMIT_KIND_", l.Kind),
			Max:    l.Max,
			Window: durationpb.New(time.Duration(l.WindowS * float64(time.Second))),
			Cost:   l.Cost,
			Burst:  l.Burst,
		},
		OnError:    value[policyv1.OnLimiterError](policyv1.OnLimiterError_value, "ON_LIMITER_ERROR_", l.OnError),
		Settle:     l.Settle,
		Per:        l.Per,
		Cap:        l.Cap,
		SessionKey: value[policyv1.SessionKey](policyv1.SessionKey_value, "SESSION_KEY_", l.SessionKey),
	}}
}

func fromLimit(r *gatewayv1.LimitRecord) Limit {
	l := FromLimit(r.GetLimit())
	l.Remaining = r.GetRemaining()
	return l
}

// FromLimit converts a limit of a decision to the type that records use.
func FromLimit(l *policyv1.RuleLimit) Limit {
	reserved := l.GetLimit()
	return Limit{
		Document: l.GetRule().GetDocument(), Rule: l.GetRule().GetRule(), Bucket: reserved.GetBucket(),
		Kind: enum.NameOrEmpty(reserved.GetKind()), Max: reserved.GetMax(), WindowS: reserved.GetWindow().AsDuration().Seconds(),
		Burst: reserved.GetBurst(), Per: l.GetPer(), Cap: l.GetCap(), Cost: reserved.GetCost(),
		OnError: enum.NameOrEmpty(l.GetOnError()), Settle: l.GetSettle(), SessionKey: enum.NameOrEmpty(l.GetSessionKey()),
	}
}

func toVote(v Vote) *approvalv1.Vote {
	return &approvalv1.Vote{
		Subject: v.Subject, Verdict: value[approvalv1.Verdict](approvalv1.Verdict_value, "VERDICT_", v.Verdict), Time: timestampOf(v.Time),
		Comment: v.Comment, Groups: v.Groups, External: v.External,
		Channel: value[approvalv1.VoteChannel](approvalv1.VoteChannel_value, "VOTE_CHANNEL_", v.Channel),
	}
}

// FromVote converts a vote to the type that records use.
func FromVote(v *approvalv1.Vote) Vote {
	return Vote{
		Subject: v.GetSubject(), Verdict: enum.NameOrEmpty(v.GetVerdict()), Time: timeOf(v.GetTime()), Channel: enum.NameOrEmpty(v.GetChannel()),
		Groups: v.GetGroups(), External: v.GetExternal(), Comment: v.GetComment(),
	}
}

func toPruned(p Pruned) *gatewayv1.PrunedSegment {
	return &gatewayv1.PrunedSegment{
		File: p.File, First: p.First, Last: p.Last, Hash: p.Hash, Bytes: p.Bytes,
		Reason: value[gatewayv1.PruneReason](gatewayv1.PruneReason_value, "PRUNE_REASON_", string(p.Reason)),
	}
}

func fromPruned(p *gatewayv1.PrunedSegment) Pruned {
	return Pruned{
		File: p.GetFile(), First: p.GetFirst(), Last: p.GetLast(), Hash: p.GetHash(), Bytes: p.GetBytes(),
		Reason: PruneReason(enum.NameOrEmpty(p.GetReason())),
	}
}

func toRedacted(r Redacted) *gatewayv1.RedactionCount {
	return &gatewayv1.RedactionCount{Name: r.Name, Count: r.Count}
}

func fromRedacted(r *gatewayv1.RedactionCount) Redacted {
	return Redacted{Name: r.GetName(), Count: r.GetCount()}
}

func toRecorded(r Recorded) *gatewayv1.RecordedArguments {
	if r == (Recorded{}) {
		return nil
	}
	return &gatewayv1.RecordedArguments{Digest: unhex(r.Digest), Place: r.Place, Bytes: r.Bytes, Redacted: r.IsRedacted}
}

func fromRecorded(r *gatewayv1.RecordedArguments) Recorded {
	return Recorded{Digest: hex.EncodeToString(r.GetDigest()), Place: r.GetPlace(), Bytes: r.GetBytes(), IsRedacted: r.GetRedacted()}
}

// CodeOf parses a code as it is written in records. It returns CODE_UNSPECIFIED for an empty or unknown name.
func CodeOf(name string) commonv1.Code {
	return value[commonv1.Code](commonv1.Code_value, "CODE_", name)
}

// value parses a name in the form that [enum.Name] returns. It returns 0 for an unknown name.
func value[E ~int32](values map[string]int32, prefix, name string) E {
	if name == "" {
		return 0
	}
	return E(values[prefix+strings.ToUpper(name)])
}

func convertAll[A, B any](list []A, convert func(A) B) []B {
	if len(list) == 0 {
		return nil
	}
	out := make([]B, len(list))
	for i, one := range list {
		out[i] = convert(one)
	}
	return out
}

func timestampOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func unhex(text string) []byte {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) == 0 {
		return nil
	}
	return raw
}
