package cli

import (
	"encoding/hex"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// record is a record of the journal as a line of its file has it, in names, shape
// and order. What does not travel is missing: session_key, since, cut_bytes,
// cut_file and crc.
type record struct {
	Seq              int64             `json:"seq"`
	Time             time.Time         `json:"time"`
	Prev             string            `json:"prev"`
	Kind             string            `json:"kind"`
	DecisionID       string            `json:"decision_id,omitzero"`
	TraceID          string            `json:"trace_id,omitzero"`
	Tenant           string            `json:"tenant,omitzero"`
	Subject          string            `json:"subject,omitzero"`
	Agent            string            `json:"agent,omitzero"`
	Owner            string            `json:"owner,omitzero"`
	TokenID          string            `json:"token_id,omitzero"`
	Chain            []recordPrincipal `json:"chain,omitempty"`
	Session          string            `json:"session,omitzero"`
	Run              string            `json:"run,omitzero"`
	Server           string            `json:"server,omitzero"`
	Method           string            `json:"method,omitzero"`
	Tool             string            `json:"tool,omitzero"`
	DefinitionDigest string            `json:"definition_digest,omitzero"`
	PolicyRevision   string            `json:"policy_revision,omitzero"`
	Rule             recordRule        `json:"rule,omitzero"`
	Effect           string            `json:"effect,omitzero"`
	Code             string            `json:"code,omitzero"`
	Hidden           bool              `json:"hidden,omitzero"`
	Message          string            `json:"message,omitzero"`
	Limits           []recordLimit     `json:"limits,omitempty"`
	ReservedAt       time.Time         `json:"reserved_at,omitzero"`
	LimitLeaseID     string            `json:"limit_lease_id,omitzero"`
	IdempotencyKey   string            `json:"idempotency_key,omitzero"`
	ApprovalID       string            `json:"approval_id,omitzero"`
	Attempt          int32             `json:"attempt,omitzero"`
	ApprovalDigest   string            `json:"approval_digest,omitzero"`
	ArgumentsHMAC    string            `json:"arguments_hmac,omitzero"`
	RequestBytes     int64             `json:"request_bytes,omitzero"`
	ResultBytes      int64             `json:"result_bytes,omitzero"`
	ResultClass      string            `json:"result_class,omitzero"`
	UpstreamStatus   int32             `json:"upstream_status,omitzero"`
	LatencyMS        float64           `json:"latency_ms,omitzero"`
	Count            int64             `json:"count,omitzero"`
	Peer             string            `json:"peer,omitzero"`
	Build            string            `json:"build,omitzero"`
}

type recordPrincipal struct {
	Tenant  string `json:"tenant,omitzero"`
	Subject string `json:"subject,omitzero"`
	Agent   string `json:"agent,omitzero"`
	Owner   string `json:"owner,omitzero"`
	TokenID string `json:"token_id,omitzero"`
}

type recordRule struct {
	Document string `json:"document,omitzero"`
	Rule     string `json:"rule,omitzero"`
}

type recordLimit struct {
	Document   string   `json:"document,omitzero"`
	Rule       string   `json:"rule,omitzero"`
	Bucket     string   `json:"bucket,omitzero"`
	Kind       string   `json:"kind,omitzero"`
	Max        string   `json:"max,omitzero"`
	WindowS    float64  `json:"window_s,omitzero"`
	Burst      int64    `json:"burst,omitzero"`
	Per        []string `json:"per,omitempty"`
	Cap        bool     `json:"cap,omitzero"`
	Cost       string   `json:"cost,omitzero"`
	OnError    string   `json:"on_error,omitzero"`
	Settle     string   `json:"settle,omitzero"`
	Remaining  string   `json:"remaining,omitzero"`
	SessionKey string   `json:"session_key,omitzero"`
}

func toRecord(r *gatewayv1.Record) record {
	p := r.GetPrincipal()
	out := record{
		Kind: kindName(r.GetKind()), Seq: r.GetSequence(), Time: r.GetTime().AsTime(), Prev: r.GetPreviousHash(),
		DecisionID: r.GetDecisionId(), TraceID: r.GetTraceId(),
		Tenant: p.GetTenant(), Subject: p.GetSubject(), Agent: p.GetAgent(), Owner: p.GetOwner(), TokenID: p.GetTokenId(),
		Session: p.GetSession(), Run: p.GetRun(), Server: r.GetServer(), Method: r.GetMethod(), Tool: r.GetTool(),
		DefinitionDigest: hex.EncodeToString(r.GetDefinitionDigest()), PolicyRevision: r.GetPolicyRevision(),
		Rule:   recordRule{Document: r.GetRule().GetDocument(), Rule: r.GetRule().GetRule()},
		Effect: enumName(r.GetEffect(), "EFFECT_"), Code: codeName(r.GetCode()), Hidden: r.GetHidden(), Message: r.GetMessage(),
		LimitLeaseID: r.GetLimitLeaseId(), ApprovalID: r.GetApprovalId(), Attempt: r.GetAttempt(),
		IdempotencyKey: r.GetIdempotencyKey(), ApprovalDigest: hex.EncodeToString(r.GetApprovalDigest()),
		ArgumentsHMAC: hex.EncodeToString(r.GetArgumentsHmac()), RequestBytes: r.GetRequestBytes(), ResultBytes: r.GetResultBytes(),
		ResultClass: resultName(r.GetResult()), UpstreamStatus: r.GetUpstreamStatus(),
		LatencyMS: float64(r.GetLatency().AsDuration()) / float64(time.Millisecond), Peer: r.GetPeer(), Build: r.GetBuild(),
	}
	if counts(r) {
		out.Count = r.GetCount()
	}
	if r.GetReserved() != nil {
		out.ReservedAt = r.GetReserved().AsTime()
	}
	for _, behind := range p.GetChain() {
		out.Chain = append(out.Chain, toRecordPrincipal(behind))
	}
	for _, l := range r.GetLimits() {
		out.Limits = append(out.Limits, toRecordLimit(l))
	}
	return out
}

// counts tells whether a record stands for more, or less, than itself.
func counts(r *gatewayv1.Record) bool {
	kind := r.GetKind()
	return kind == gatewayv1.RecordKind_RECORD_KIND_ADMISSION || kind == gatewayv1.RecordKind_RECORD_KIND_RECOVERY || r.GetCount() > 1
}

func toRecordPrincipal(p *identityv1.Principal) recordPrincipal {
	return recordPrincipal{Tenant: p.GetTenant(), Subject: p.GetSubject(), Agent: p.GetAgent(), Owner: p.GetOwner(), TokenID: p.GetTokenId()}
}

func toRecordLimit(r *gatewayv1.LimitRecord) recordLimit {
	l := r.GetLimit()
	return recordLimit{
		Document: l.GetRule().GetDocument(), Rule: l.GetRule().GetRule(), Bucket: l.GetBucket(),
		Kind: enumName(l.GetKind(), "LIMIT_KIND_"), Max: l.GetMax(), WindowS: l.GetWindow().AsDuration().Seconds(),
		Burst: l.GetBurst(), Per: l.GetPer(), Cap: l.GetCap(), Cost: l.GetCost(),
		OnError: enumName(l.GetOnError(), "ON_LIMITER_ERROR_"), Settle: l.GetSettle(),
		Remaining: r.GetRemaining(), SessionKey: sessionKeyName(l.GetSessionKey()),
	}
}

// printDetails prints everything that records say, a line a field.
func (t *tool) printDetails(records []*gatewayv1.Record) error {
	for i, r := range records {
		if i > 0 {
			fmt.Fprintln(t.out)
		}
		if err := t.table([]string{"FIELD", "VALUE"}, fields(reflect.ValueOf(toRecord(r)))); err != nil {
			return err
		}
	}
	return nil
}

// fields are the names and values of a part of a record, under the names of its
// JSON, without those that are empty. A list of parts has a row for each.
func fields(part reflect.Value) [][]string {
	var rows [][]string
	for i := range part.NumField() {
		name, _, _ := strings.Cut(part.Type().Field(i).Tag.Get("json"), ",")
		value := part.Field(i)
		switch {
		case value.IsZero():
		case value.Kind() == reflect.Slice && value.Type().Elem().Kind() == reflect.Struct:
			for j := range value.Len() {
				rows = append(rows, []string{name, words(value.Index(j))})
			}
		default:
			rows = append(rows, []string{name, words(value)})
		}
	}
	return rows
}

// words is a value in one line.
func words(value reflect.Value) string {
	switch v := value.Interface().(type) {
	case time.Time:
		return v.Local().Format(time.RFC3339Nano)
	case []string:
		return strings.Join(v, ",")
	case recordRule:
		return v.Document + "/" + v.Rule
	}
	if value.Kind() != reflect.Struct {
		return fmt.Sprint(value)
	}
	var pairs []string
	for _, f := range fields(value) {
		if strings.ContainsAny(f[1], ` ="`) { // it must not look like another pair
			f[1] = strconv.Quote(f[1])
		}
		pairs = append(pairs, f[0]+"="+f[1])
	}
	return strings.Join(pairs, " ")
}
