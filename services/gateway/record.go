package gateway

import (
	"encoding/hex"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/journal"
)

var kinds = map[journal.Kind]gatewayv1.RecordKind{
	journal.KindClaim:     gatewayv1.RecordKind_RECORD_KIND_CLAIM,
	journal.KindSettled:   gatewayv1.RecordKind_RECORD_KIND_SETTLED,
	journal.KindIntent:    gatewayv1.RecordKind_RECORD_KIND_INTENT,
	journal.KindOutcome:   gatewayv1.RecordKind_RECORD_KIND_OUTCOME,
	journal.KindRefusal:   gatewayv1.RecordKind_RECORD_KIND_REFUSAL,
	journal.KindAdmission: gatewayv1.RecordKind_RECORD_KIND_ADMISSION,
	journal.KindRecovery:  gatewayv1.RecordKind_RECORD_KIND_RECOVERY,
}

var results = map[journal.ResultClass]gatewayv1.ResultClass{
	journal.ResultOK:            gatewayv1.ResultClass_RESULT_CLASS_OK,
	journal.ResultToolError:     gatewayv1.ResultClass_RESULT_CLASS_TOOL_ERROR,
	journal.ResultProtocolError: gatewayv1.ResultClass_RESULT_CLASS_PROTOCOL_ERROR,
	journal.ResultUnknown:       gatewayv1.ResultClass_RESULT_CLASS_UNKNOWN,
	journal.ResultNeverSent:     gatewayv1.ResultClass_RESULT_CLASS_NEVER_SENT,
}

// toProto packs a record of the journal for those who read it over gRPC.
func toProto(r *journal.Record) *gatewayv1.Record {
	out := &gatewayv1.Record{
		Kind: kinds[r.Kind], Sequence: r.Seq, Time: timestamppb.New(r.Time), PreviousHash: r.Prev,
		DecisionId: r.DecisionID, TraceId: r.TraceID,
		Principal: toPrincipal(r.Principal), Server: r.Server, Method: r.Method, Tool: r.Tool,
		DefinitionDigest: unhex(r.DefinitionDigest), PolicyRevision: r.PolicyRevision,
		Effect: effectOf(r.Effect), Code: codeOf(r.Code), Hidden: r.Hidden, Message: r.Message,
		LimitLeaseId: r.LimitLeaseID, ApprovalId: r.ApprovalID, Attempt: r.Attempt, ApprovalDigest: unhex(r.ApprovalDigest), IdempotencyKey: r.IdempotencyKey,
		ArgumentsHmac: unhex(r.ArgumentsHMAC),
		RequestBytes:  r.RequestBytes, ResultBytes: r.ResultBytes, Result: results[r.ResultClass],
		UpstreamStatus: int32(r.UpstreamStatus), Build: r.Build, Count: r.Count, Peer: r.Peer,
	}
	if r.Kind != journal.KindRecovery { // which counts lost outcomes, and there may be none
		out.Count = max(r.Count, 1)
	}
	out.Principal.Session, out.Principal.Run = r.Session, r.Run
	for _, p := range r.Chain {
		out.Principal.Chain = append(out.Principal.Chain, toPrincipal(p))
	}
	if r.Rule != (journal.Rule{}) {
		out.Rule = &policyv1.RuleRef{Document: r.Rule.Document, Rule: r.Rule.Rule}
	}
	for _, l := range r.Limits {
		out.Limits = append(out.Limits, toLimit(l))
	}
	if !r.ReservedAt.IsZero() {
		out.Reserved = timestamppb.New(r.ReservedAt)
	}
	if r.LatencyMS > 0 {
		out.Latency = durationpb.New(time.Duration(r.LatencyMS * float64(time.Millisecond)))
	}
	return out
}

func toPrincipal(p journal.Principal) *identityv1.Principal {
	return &identityv1.Principal{Tenant: p.Tenant, Subject: p.Subject, Agent: p.Agent, Owner: p.Owner, TokenId: p.TokenID}
}

func toLimit(l journal.Limit) *gatewayv1.LimitRecord {
	return &gatewayv1.LimitRecord{Remaining: l.Remaining, Limit: &policyv1.Limit{
		Rule:       &policyv1.RuleRef{Document: l.Document, Rule: l.Rule},
		Bucket:     l.Bucket,
		Kind:       policyv1.LimitKind(policyv1.LimitKind_value["LIMIT_KIND_"+strings.ToUpper(l.Kind)]),
		Max:        l.Max,
		Window:     durationpb.New(time.Duration(l.WindowS * float64(time.Second))),
		Cost:       l.Cost,
		Burst:      l.Burst,
		OnError:    policyv1.OnLimiterError(policyv1.OnLimiterError_value["ON_LIMITER_ERROR_"+strings.ToUpper(l.OnError)]),
		Settle:     l.Settle,
		Per:        l.Per,
		Cap:        l.Cap,
		SessionKey: policyv1.SessionKey(policyv1.SessionKey_value["SESSION_KEY_"+strings.ToUpper(l.SessionKey)]),
	}}
}

// codeOf reads a code as records write it.
func codeOf(name string) commonv1.Code {
	if name == "" {
		return commonv1.Code_CODE_UNSPECIFIED
	}
	return commonv1.Code(commonv1.Code_value["CODE_"+strings.ToUpper(name)])
}

func effectOf(name string) policyv1.Effect {
	return policyv1.Effect(policyv1.Effect_value["EFFECT_"+strings.ToUpper(name)])
}

func unhex(text string) []byte {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) == 0 {
		return nil
	}
	return raw
}
