package journal

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"
)

// reflected returns the JSON that the json package writes for a record.
func reflected(rec Record) (string, error) {
	out, err := json.Marshal(rec, jsontext.AllowInvalidUTF8(true))
	return string(out), err
}

func byHand(rec Record) (string, error) {
	var w lineWriter
	w.record(&rec)
	return string(w.out), w.err
}

// The test sets each field of a record alone, including nested fields, and compares the line with the output of the
// json package.
func TestLineWriter_WritesEveryField(t *testing.T) {
	t.Parallel()
	byChain := map[string]bool{"Seq": true, "Time": true, "Prev": true, "SealKey": true, "Oldest": true, "CRC": true}
	fields := 0
	var set func(t *testing.T, rec *Record, path string, v reflect.Value)
	set = func(t *testing.T, rec *Record, path string, v reflect.Value) {
		t.Helper()
		whole := func() {
			fields++
			want, err := reflected(*rec)
			got, failed := byHand(*rec)
			if got != want || err != nil || failed != nil {
				t.Errorf("%s: written is %s (%v), want %s (%v)", path, got, failed, want, err)
			}
			if none, _ := reflected(Record{}); want == none {
				t.Errorf("%s does not show", path)
			}
		}
		defer v.SetZero()
		switch v.Kind() {
		case reflect.String:
			v.SetString("x")
		case reflect.Int, reflect.Int32, reflect.Int64:
			v.SetInt(7)
		case reflect.Float64:
			v.SetFloat(0.5)
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
			if v.Type().Elem().Kind() == reflect.Struct {
				set(t, rec, path+"[0]", v.Index(0))
				v.Set(reflect.MakeSlice(v.Type(), 2, 2))
			}
		case reflect.Struct:
			if at, ok := reflect.TypeAssert[*time.Time](v.Addr()); ok {
				*at = time.Date(2026, 11, 24, 1, 2, 3, 4000, time.UTC)
				break
			}
			for i := range v.NumField() {
				if name := v.Type().Field(i).Name; path != "" || !byChain[name] {
					set(t, rec, fmt.Sprintf("%s.%s", path, name), v.Field(i))
				}
			}
			return
		default:
			t.Fatalf("%s is of a kind that nothing is known of: %v", path, v.Kind())
		}
		whole()
	}
	var rec Record
	set(t, &rec, "", reflect.ValueOf(&rec).Elem())
	if fields < 70 {
		t.Errorf("%d fields were set, want all", fields)
	}
}

// The test uses strings of arbitrary bytes, and arbitrary numbers and times, and compares each line with the output of
// the json package.
func TestLineWriter_MatchesJSONPackage(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.Custom(func(t *rapid.T) string {
			if rapid.Bool().Draw(t, "valid") {
				return rapid.String().Draw(t, "text")
			}
			return string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		})
		when := rapid.Custom(func(t *rapid.T) time.Time {
			return time.Unix(rapid.Int64Range(-1<<37, 1<<39).Draw(t, "seconds"), rapid.Int64Range(0, 1e9-1).Draw(t, "nanoseconds")).UTC()
		})
		decimal := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{0, math.Copysign(0, -1), 1e-6, 9.9e-7, 1e20, 1e21, 5e-324, math.MaxFloat64, math.NaN(), math.Inf(1), math.Inf(-1), 0.1, 1e-9, 1e-10, 1e100}))
		rec := Record{
			Kind: Kind(text.Draw(t, "kind")), Tool: text.Draw(t, "tool"), Message: text.Draw(t, "message"), Rule: Rule{Rule: text.Draw(t, "rule")},
			ReservedAt: when.Draw(t, "reserved"), LatencyMS: decimal.Draw(t, "latency"), Count: rapid.Int64().Draw(t, "count"), Attempt: rapid.Int32().Draw(t, "attempt"),
			Votes:  []Vote{{Time: when.Draw(t, "voted"), Groups: rapid.SliceOf(text).Draw(t, "groups"), Comment: text.Draw(t, "comment")}},
			Limits: []Limit{{WindowS: decimal.Draw(t, "window"), Per: rapid.SliceOf(text).Draw(t, "per")}, {}},
		}
		want, err := reflected(rec)
		got, failed := byHand(rec)
		if (err == nil) != (failed == nil) || err == nil && got != want {
			t.Fatalf("written is %s (%v), want %s (%v)", got, failed, want, err)
		}
	})
}

func BenchmarkBody(b *testing.B) {
	rec := Record{Kind: KindIntent, DecisionID: "0192f1c2-7d44-7a31-9f6e-6c2f6f0a1b2c", TraceID: "4bf92f3577b34da6a3ce929d0e0e4736",
		Principal: Principal{Tenant: "default", Subject: "ana", Agent: "a", TokenID: "a"}, Server: "bench", Method: "tools/call", Tool: "echo",
		PolicyRevision: "9f86d081884c7d659a2feaa0c55ad015", Rule: Rule{Document: "bench", Rule: "tools.echo"}, Effect: "allow", RequestBytes: 120}
	var body bytes.Buffer
	b.ReportAllocs()
	for b.Loop() {
		if err := encodeBody(&body, &rec); err != nil {
			b.Fatal(err)
		}
	}
}
