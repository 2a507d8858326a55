package pipeline_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/arguments"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// recordedBy makes a call. It returns the copy of the arguments to which the call's intent refers, and the intent's
// description of that copy.
func recordedBy(t *testing.T, w *testPipeline, c *attempt.Call) (text string, recorded journal.Recorded) {
	t.Helper()
	p := w.pipeline(t)
	got := p.Do(t.Context(), c)
	p.Wait(t.Context())
	if got.Refusal != nil {
		t.Fatalf("%+v", got.Refusal)
	}
	intent := w.recordsOf(journal.KindIntent)[0]
	if intent.Recorded == (journal.Recorded{}) {
		return "", intent.Recorded
	}
	raw, err := w.arguments.Get(intent.DecisionID, arguments.Copy{Digest: intent.Recorded.Digest, Place: intent.Recorded.Place})
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(raw)) != intent.Recorded.Bytes {
		t.Errorf("the copy has %d bytes, and the record says %d", len(raw), intent.Recorded.Bytes)
	}
	return string(raw), intent.Recorded
}

const callWithSecret = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"safe","arguments":` +
	`{"to":"a@example.com","text":"key ghp_0123456789abcdefghijABCDEFGHIJ012345"}}}`

// The stored copy of the arguments contains no secrets. Everything that the call's redactions find is also removed from
// the copy, even if a redaction applies only to results.
func TestDo_RecordsArgumentsWithoutSecrets(t *testing.T) {
	t.Parallel()
	results := redacting()
	results.Redactions = results.GetRedactions()[:1] // of results
	for name, tt := range map[string]struct {
		decision   *policyv1.Decision
		message    string
		want       string
		isRedacted bool
	}{
		"plain":               {allow(), callWithAddress, `{"to":"a@example.com"}`, false},
		"a secret":            {allow(), callWithSecret, `{"to":"a@example.com","text":"key [redacted: secrets]"}`, true},
		"redacted arguments":  {redacting(), callWithAddress, `{"to":"[redacted: email]"}`, true},
		"redacted results":    {results, callWithAddress, `{"to":"[redacted: email]"}`, true},
		"no arguments":        {allow(), `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"safe"}}`, "", false},
		"can't be searched":   {allow(), strings.ReplaceAll(callWithSecret, "0123456789abcdefghijABCDEFGHIJ012345", "0123456789abcdefghijABCDEFGHIJ012345"+strings.Repeat(" ghp_0123456789abcdefghijABCDEFGHIJ012345", 10_001)), `"[redacted: all arguments, because `, true},
		"in another language": {allow(), strings.ReplaceAll(callWithAddress, "a@example.com", "東京 \\u0041"), `{"to":"東京 \u0041"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for by, set := range map[string]func(*testPipeline, *attempt.Call, *policyv1.Decision){
				"server": func(_ *testPipeline, c *attempt.Call, _ *policyv1.Decision) { c.RecordArguments = true },
				"rule":   func(_ *testPipeline, _ *attempt.Call, d *policyv1.Decision) { d.RecordArguments = true },
			} {
				w := newTestPipeline()
				c, d := w.call(t), proto.CloneOf(tt.decision)
				set(w, c, d)
				w.decide, c.Message = decides(d), parse(t, tt.message)
				if text, recorded := recordedBy(t, w, c); !strings.HasPrefix(text, tt.want) || (text == "") != (tt.want == "") || recorded.IsRedacted != tt.isRedacted {
					t.Errorf("by the %s: recorded %s, %+v", by, text, recorded)
				}
			}
		})
	}
}

func TestDo_RecordsNoArgumentsUnlessAsked(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	c := w.call(t)
	c.Message = parse(t, callWithAddress)
	if _, recorded := recordedBy(t, w, c); recorded != (journal.Recorded{}) {
		t.Errorf("recorded %+v", recorded)
	}
}

// A call whose arguments can't be stored is not sent.
func TestDo_CallIsRefusedIfItsArgumentsCannotBeRecorded(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	c := w.call(t)
	c.Message, c.RecordArguments = parse(t, callWithAddress), true
	p := w.pipeline(t)
	if err := w.recorded(t).Close(); err != nil {
		t.Fatal(err)
	}
	got := p.Do(t.Context(), c)
	p.Wait(t.Context())
	if codeOf(got.Refusal) != commonv1.Code_CODE_AUDIT_UNAVAILABLE || !strings.Contains(got.Refusal.Message, "the arguments of this call can't be recorded") ||
		w.count("send") != 0 || len(w.recordsOf(journal.KindRefusal)) != 1 {
		t.Errorf("%+v, %v", got.Refusal, w.steps)
	}
}

// While a call waits for its server, a rule changes and now requires that a copy of the arguments is stored. The call
// does not start without the copy.
func TestDo_CallDoesNotBeginWithoutACopyThatIsNewlyAskedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestPipeline()
		w.beginAfter(time.Second, func() {
			d := allow()
			d.RecordArguments = true
			w.decide = decides(d)
		})
		p, c := w.pipeline(t), w.call(t)
		c.Message = parse(t, callWithAddress)
		got := p.Do(t.Context(), c)
		p.Wait(t.Context())
		if got.Refusal == nil || w.count("begin") != 0 {
			t.Errorf("%+v, %v", got.Refusal, w.steps)
		}
	})
}

// A copy of the arguments is stored, but the intent can't be recorded. The call is not sent.
func TestDo_CallIsNotSentIfOnlyItsArgumentsAreRecorded(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	w.broken[journal.KindIntent] = errors.New("disk full")
	p, c := w.pipeline(t), w.call(t)
	c.Message, c.RecordArguments = parse(t, callWithAddress), true
	got := p.Do(t.Context(), c)
	p.Wait(t.Context())
	if codeOf(got.Refusal) != commonv1.Code_CODE_AUDIT_UNAVAILABLE || w.count("send") != 0 {
		t.Errorf("%+v, %v", got.Refusal, w.steps)
	}
}
