package journal

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// A lineWriter writes JSON objects member by member. It takes a third of the time that an encoder that uses reflection
// would take. A test compares its output with the output of the json package.
type lineWriter struct {
	out []byte
	err error
}

// name writes the beginning of the member with the given name, up to its value.
func (w *lineWriter) name(name string) {
	if w.out[len(w.out)-1] != '{' {
		w.out = append(w.out, ',')
	}
	w.out = append(append(append(w.out, '"'), name...), `":`...)
}

// text writes a string member. It omits the member if the string is empty.
func (w *lineWriter) text(name, value string) {
	if value != "" {
		w.name(name)
		w.quote(value)
	}
}

func (w *lineWriter) quote(value string) {
	for i := range len(value) {
		if c := value[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			w.out, _ = jsontext.AppendQuote(w.out, value) // invalid UTF-8 is written as U+FFFD
			return
		}
	}
	w.out = append(append(append(w.out, '"'), value...), '"')
}

func (w *lineWriter) number(name string, value int64) {
	if value != 0 {
		w.name(name)
		w.out = strconv.AppendInt(w.out, value, 10)
	}
}

// decimal writes a number in the format of ECMAScript (RFC 8785, section 3.2.2.3).
func (w *lineWriter) decimal(name string, value float64) {
	switch {
	case value == 0:
		return
	case math.IsNaN(value) || math.IsInf(value, 0):
		w.err = fmt.Errorf("%s is not a finite number", name)
		return
	}
	w.name(name)
	if size := math.Abs(value); size < 1e-6 || size >= 1e21 {
		w.out = strconv.AppendFloat(w.out, value, 'e', -1, 64)
		if n := len(w.out); w.out[n-2] == '0' && (w.out[n-3] == '-' || w.out[n-3] == '+') { // ECMAScript writes e-9, not e-09
			w.out = append(w.out[:n-2], w.out[n-1])
		}
		return
	}
	w.out = strconv.AppendFloat(w.out, value, 'f', -1, 64)
}

func (w *lineWriter) flag(name string, value bool) {
	if value {
		w.name(name)
		w.out = append(w.out, "true"...)
	}
}

// time writes a time in UTC. It omits the zero time.
func (w *lineWriter) time(name string, value time.Time) {
	if value.IsZero() {
		return
	}
	if y := value.Year(); y < 0 || y > 9999 {
		w.err = fmt.Errorf("%s is in the year %d, which RFC 3339 can't express", name, y)
		return
	}
	w.name(name)
	w.out = append(value.AppendFormat(append(w.out, '"'), time.RFC3339Nano), '"')
}

func (w *lineWriter) texts(name string, values []string) {
	list(w, name, values, func(w *lineWriter, value *string) { w.quote(*value) })
}

// list writes an array member. It omits the member if the array is empty.
func list[T any](w *lineWriter, name string, values []T, write func(*lineWriter, *T)) {
	if len(values) == 0 {
		return
	}
	w.name(name)
	w.out = append(w.out, '[')
	for i := range values {
		if i > 0 {
			w.out = append(w.out, ',')
		}
		write(w, &values[i])
	}
	w.out = append(w.out, ']')
}

// object returns a function that writes a value as an object. members writes the members of the object.
func object[T any](members func(*lineWriter, *T)) func(*lineWriter, *T) {
	return func(w *lineWriter, value *T) {
		w.out = append(w.out, '{')
		members(w, value)
		w.out = append(w.out, '}')
	}
}

// record writes a record, except for the members that the chain adds.
func (w *lineWriter) record(r *Record) {
	w.out = append(w.out, '{')
	w.name("kind")
	w.quote(string(r.Kind))
	w.text("decision_id", r.DecisionID)
	w.text("trace_id", r.TraceID)
	w.principal(&r.Principal)
	list(w, "chain", r.Chain, object((*lineWriter).principal))
	w.text("session", r.Session)
	w.text("run", r.Run)
	w.text("server", r.Server)
	w.text("method", r.Method)
	w.text("tool", r.Tool)
	w.flag("from_server", r.FromServer)
	w.text("definition_digest", r.DefinitionDigest)
	w.text("category", r.Category)
	w.text("risk", r.Risk)
	w.text("policy_revision", r.PolicyRevision)
	if r.Rule != (Rule{}) {
		w.name("rule")
		object((*lineWriter).rule)(w, &r.Rule)
	}
	w.text("effect", r.Effect)
	w.text("code", r.Code)
	w.flag("hidden", r.Hidden)
	w.text("message", r.Message)
	if r.Observed != (Observed{}) {
		w.name("observed")
		object((*lineWriter).observed)(w, &r.Observed)
	}
	list(w, "limits", r.Limits, object((*lineWriter).limit))
	w.time("reserved_at", r.ReservedAt)
	w.text("limit_lease_id", r.LimitLeaseID)
	w.text("session_key", r.SessionKey)
	w.text("idempotency_key", r.IdempotencyKey)
	w.text("approval_id", r.ApprovalID)
	w.number("attempt", int64(r.Attempt))
	w.text("approval_digest", r.ApprovalDigest)
	list(w, "votes", r.Votes, object((*lineWriter).vote))
	w.text("grant", r.Grant)
	w.text("arguments_hmac", r.ArgumentsHMAC)
	w.number("request_bytes", r.RequestBytes)
	w.number("result_bytes", r.ResultBytes)
	w.text("result_class", string(r.ResultClass))
	w.number("upstream_status", int64(r.UpstreamStatus))
	list(w, "redacted", r.Redacted, object((*lineWriter).redacted))
	if r.Recorded != (Recorded{}) {
		w.name("recorded_arguments")
		object((*lineWriter).recorded)(w, &r.Recorded)
	}
	w.decimal("latency_ms", r.LatencyMS)
	w.number("count", r.Count)
	w.text("peer", r.Peer)
	w.time("since", r.Since)
	w.number("cut_bytes", r.CutBytes)
	w.text("cut_file", r.CutFile)
	list(w, "pruned", r.Pruned, object((*lineWriter).pruned))
	w.text("build", r.Build)
	w.out = append(w.out, '}')
}

func (w *lineWriter) principal(p *Principal) {
	w.text("tenant", p.Tenant)
	w.text("subject", p.Subject)
	w.text("agent", p.Agent)
	w.text("owner", p.Owner)
	w.text("person", p.Person)
	w.text("token_id", p.TokenID)
	w.text("issuer", p.Issuer)
	w.text("client", p.Client)
}

func (w *lineWriter) rule(r *Rule) {
	w.text("document", r.Document)
	w.text("rule", r.Rule)
}

func (w *lineWriter) observed(o *Observed) {
	w.text("effect", o.Effect)
	w.text("code", o.Code)
	if o.Rule != (Rule{}) {
		w.name("rule")
		object((*lineWriter).rule)(w, &o.Rule)
	}
}

func (w *lineWriter) limit(l *Limit) {
	w.text("document", l.Document)
	w.text("rule", l.Rule)
	w.text("bucket", l.Bucket)
	w.text("kind", l.Kind)
	w.text("max", l.Max)
	w.decimal("window_s", l.WindowS)
	w.number("burst", l.Burst)
	w.texts("per", l.Per)
	w.flag("cap", l.Cap)
	w.text("cost", l.Cost)
	w.text("on_error", l.OnError)
	w.text("settle", l.Settle)
	w.text("remaining", l.Remaining)
	w.text("session_key", l.SessionKey)
}

func (w *lineWriter) redacted(r *Redacted) {
	w.text("name", r.Name)
	w.number("count", r.Count)
}

func (w *lineWriter) recorded(r *Recorded) {
	w.text("digest", r.Digest)
	w.text("place", r.Place)
	w.number("bytes", r.Bytes)
	w.flag("redacted", r.IsRedacted)
}

func (w *lineWriter) vote(v *Vote) {
	w.text("subject", v.Subject)
	w.text("verdict", v.Verdict)
	w.time("time", v.Time)
	w.text("channel", v.Channel)
	w.texts("groups", v.Groups)
	w.flag("external", v.External)
	w.text("comment", v.Comment)
}

func (w *lineWriter) pruned(p *Pruned) {
	w.text("file", p.File)
	w.number("first", p.First)
	w.number("last", p.Last)
	w.text("hash", p.Hash)
	w.number("bytes", p.Bytes)
	w.text("why", string(p.Reason))
}
