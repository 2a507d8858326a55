package cli

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

// record is a record of the journal as JSON: the names that the journal itself
// uses.
type record struct {
	Kind           string        `json:"kind"`
	Seq            int64         `json:"seq"`
	Time           time.Time     `json:"time"`
	Prev           string        `json:"prev"`
	DecisionID     string        `json:"decision_id,omitzero"`
	TraceID        string        `json:"trace_id,omitzero"`
	Tenant         string        `json:"tenant,omitzero"`
	Subject        string        `json:"subject,omitzero"`
	Agent          string        `json:"agent,omitzero"`
	Owner          string        `json:"owner,omitzero"`
	TokenID        string        `json:"token_id,omitzero"`
	Chain          []string      `json:"chain,omitempty"`
	Session        string        `json:"session,omitzero"`
	Run            string        `json:"run,omitzero"`
	Server         string        `json:"server,omitzero"`
	Method         string        `json:"method,omitzero"`
	Tool           string        `json:"tool,omitzero"`
	PolicyRevision string        `json:"policy_revision,omitzero"`
	Rule           string        `json:"rule,omitzero"`
	Effect         string        `json:"effect,omitzero"`
	Code           string        `json:"code,omitzero"`
	Hidden         bool          `json:"hidden,omitzero"`
	Message        string        `json:"message,omitzero"`
	Limits         []recordLimit `json:"limits,omitempty"`
	ReservedAt     time.Time     `json:"reserved_at,omitzero"`
	ArgumentsHMAC  string        `json:"arguments_hmac,omitzero"`
	RequestBytes   int64         `json:"request_bytes,omitzero"`
	ResultBytes    int64         `json:"result_bytes,omitzero"`
	ResultClass    string        `json:"result_class,omitzero"`
	UpstreamStatus int32         `json:"upstream_status,omitzero"`
	LatencyMS      float64       `json:"latency_ms,omitzero"`
	Count          int64         `json:"count,omitzero"`
	Peer           string        `json:"peer,omitzero"`
	Build          string        `json:"build,omitzero"`
}

type recordLimit struct {
	Rule       string   `json:"rule"`
	Bucket     string   `json:"bucket"`
	Max        string   `json:"max"`
	WindowS    float64  `json:"window_s"`
	Per        []string `json:"per,omitempty"`
	Cap        bool     `json:"cap,omitzero"`
	SessionKey string   `json:"session_key,omitzero"`
	Remaining  string   `json:"remaining,omitzero"`
}

func toRecord(r *gatewayv1.Record) record {
	p := r.GetPrincipal()
	out := record{
		Kind: kindName(r.GetKind()), Seq: r.GetSequence(), Time: r.GetTime().AsTime(), Prev: r.GetPreviousHash(),
		DecisionID: r.GetDecisionId(), TraceID: r.GetTraceId(),
		Tenant: p.GetTenant(), Subject: p.GetSubject(), Agent: p.GetAgent(), Owner: p.GetOwner(), TokenID: p.GetTokenId(),
		Session: p.GetSession(), Run: p.GetRun(), Server: r.GetServer(), Method: r.GetMethod(), Tool: r.GetTool(),
		PolicyRevision: r.GetPolicyRevision(), Effect: strings.TrimPrefix(effectName(r.GetEffect()), "-"),
		Code: codeName(r.GetCode()), Hidden: r.GetHidden(), Message: r.GetMessage(),
		ArgumentsHMAC: hex.EncodeToString(r.GetArgumentsHmac()), RequestBytes: r.GetRequestBytes(), ResultBytes: r.GetResultBytes(),
		ResultClass: resultName(r.GetResult()), UpstreamStatus: r.GetUpstreamStatus(),
		LatencyMS: float64(r.GetLatency().AsDuration()) / float64(time.Millisecond), Peer: r.GetPeer(), Build: r.GetBuild(),
	}
	if r.GetCount() > 1 {
		out.Count = r.GetCount()
	}
	if r.GetRule() != nil {
		out.Rule = ruleName(r.GetRule())
	}
	if r.GetReserved() != nil {
		out.ReservedAt = r.GetReserved().AsTime()
	}
	for _, behind := range p.GetChain() {
		out.Chain = append(out.Chain, behind.GetTenant()+"/"+behind.GetSubject())
	}
	for _, l := range r.GetLimits() {
		limit := l.GetLimit()
		out.Limits = append(out.Limits, recordLimit{
			Rule: ruleName(limit.GetRule()), Bucket: limit.GetBucket(), Max: limit.GetMax(),
			WindowS: limit.GetWindow().AsDuration().Seconds(), Per: limit.GetPer(), Cap: limit.GetCap(),
			SessionKey: sessionKeyName(limit.GetSessionKey()), Remaining: l.GetRemaining(),
		})
	}
	return out
}

// printDetails prints everything that records say, a line a field.
func (t *tool) printDetails(records []*gatewayv1.Record) error {
	for i, r := range records {
		if i > 0 {
			fmt.Fprintln(t.out)
		}
		if err := t.table([]string{"FIELD", "VALUE"}, details(toRecord(r))); err != nil {
			return err
		}
	}
	return nil
}

func details(r record) [][]string {
	rows := [][]string{{"kind", r.Kind}, {"time", r.Time.Local().Format(time.RFC3339Nano)}}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, value})
		}
	}
	add("decision", r.DecisionID)
	add("trace", r.TraceID)
	add("subject", r.Subject)
	add("agent", r.Agent)
	add("token", r.TokenID)
	add("chain", strings.Join(r.Chain, " < "))
	add("session", r.Session)
	add("run", r.Run)
	add("server", r.Server)
	add("method", r.Method)
	add("tool", r.Tool)
	add("effect", r.Effect)
	add("code", r.Code)
	add("message", r.Message)
	add("rule", r.Rule)
	add("policy", r.PolicyRevision)
	for _, l := range r.Limits {
		add("limit", fmt.Sprintf("%s: %s left of %s in %gs", l.Rule, l.Remaining, l.Max, l.WindowS))
	}
	add("result", r.ResultClass)
	add("arguments hmac", r.ArgumentsHMAC)
	if r.LatencyMS > 0 {
		add("latency", fmt.Sprintf("%.2f ms", r.LatencyMS))
	}
	return append(rows, []string{"chain hash before", r.Prev})
}
