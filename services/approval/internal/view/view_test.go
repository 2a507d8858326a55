package view_test

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/view"
)

func record(params string, change ...func(*lifecycle.OpenRequest)) *lifecycle.Record {
	q := lifecycle.OpenRequest{
		ID: "a", Digest: []byte("d"), Requester: &identityv1.Principal{Tenant: "acme", Subject: "bot", Agent: "dev", Owner: "olga"},
		Call: &approvalv1.BoundCall{ServerIdentity: `stdio ["node"]`, Call: &policyv1.Call{Server: "pay", Name: "refund", ParamsJson: params, DefinitionDigest: make([]byte, 32)}},
		Decision: &policyv1.Decision{
			Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL, Message: "money moves", Approval: &policyv1.ApprovalTerms{Quorum: 1},
		},
		Times: lifecycle.Times{Decide: time.Hour, Execute: time.Hour},
	}
	for _, f := range change {
		f(&q)
	}
	return lifecycle.Open(q, time.Unix(0, 0))
}

func draw(t *testing.T, r *lifecycle.Record, facts view.Facts) *approvalv1.View {
	t.Helper()
	v, err := view.Draw(r, facts)
	if err != nil {
		t.Fatal(err)
	}
	part, err := v.Part(0, "")
	if err != nil {
		t.Fatal(err)
	}
	return part
}

func TestDraw_ShowsAllParams(t *testing.T) {
	t.Parallel()
	v := draw(t, record(`{"name":"refund","arguments":{"sum":12.50,"id":9007199254740993,"to":"é\/x","empty":{},"list":[1,{"a":null}]}}`), view.Facts{})
	const want = `{
  "name": "refund",
  "arguments": {
    "sum": 12.50,
    "id": 9007199254740993,
    "to": "é/x",
    "empty": {},
    "list": [
      1,
      {
        "a": null
      }
    ]
  }
}`
	if v.GetParams() != want || v.GetParamsTotal() != int64(len(want)) || v.GetNextOffset() != 0 || len(v.GetDigest()) != 32 {
		t.Errorf("params are %s\nwant %s", v.GetParams(), want)
	}
	if v := draw(t, record(""), view.Facts{}); v.GetParams() != "{}" {
		t.Errorf("no params are %q", v.GetParams())
	}
}

// A view shows invisible characters, and characters that change the text direction, as escapes.
func TestDraw_EscapesInvisibleCharacters(t *testing.T) {
	t.Parallel()
	const tricks = "a\u202eb\u2066c\u200bd\u00ade\u3164f\ufe0fg\x1b[31mh\ni\u2028j\U000e0041k\\u202e"
	r := record(`{"arguments":{"x":"`+"\u202egnp.exe"+`","\u200b":"line\nbreak","esc":"\\u202e"}}`, func(q *lifecycle.OpenRequest) {
		q.Requester = &identityv1.Principal{Subject: tricks, Agent: tricks, Owner: tricks, Chain: []*identityv1.Principal{{Subject: tricks}}}
		q.Decision.Message = tricks
		q.Call.Call.Name, q.Call.ServerIdentity = tricks, tricks
	})
	v := draw(t, r, view.Facts{})
	for _, text := range append([]string{v.GetSubject(), v.GetAgent(), v.GetOwner(), v.GetName(), v.GetServerIdentity(), v.GetMessage(), strings.ReplaceAll(v.GetParams(), "\n", "")}, v.GetChain()...) {
		if i := strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == 0x3164 || r == 0xfe0f }); i >= 0 {
			t.Errorf("%q hides something at %d", text, i)
		}
	}
	const want = `a\u202eb\u2066c\u200bd\u00ade\u3164f\ufe0fg\u001b[31mh\u000ai\u2028j\udb40\udc41k\\u202e`
	if v.GetName() != want {
		t.Errorf("the name is\n%s\nwant\n%s", v.GetName(), want)
	}
	if !strings.Contains(v.GetParams(), `"x": "\u202egnp.exe"`) || !strings.Contains(v.GetParams(), `"\u200b": "line\u000abreak"`) || !strings.Contains(v.GetParams(), `"esc": "\\u202e"`) {
		t.Errorf("params are %s", v.GetParams())
	}
	if n := len(v.GetWarnings()); n != 3 {
		t.Errorf("warnings are %q", v.GetWarnings())
	}
	if v := draw(t, record(`{"a":"two\nlines"}`, classed), view.Facts{}); len(v.GetWarnings()) != 0 {
		t.Errorf("warnings of an ordinary text: %q", v.GetWarnings())
	}
}

func classed(q *lifecycle.OpenRequest) {
	q.Decision.ToolClass = &policyv1.ToolClass{Risk: policyv1.Risk_RISK_HIGH}
}

// Views that differ in an argument, the message, the class of the tool or the approval terms have different digests.
// Equal views have the same digest.
func TestDigest_ChangesWithWhatIsDecided(t *testing.T) {
	t.Parallel()
	digests := map[string]string{}
	for name, v := range map[string]*approvalv1.View{
		"the base":         draw(t, record(`{"a":1}`), view.Facts{}),
		"another argument": draw(t, record(`{"a":2}`), view.Facts{}),
		"another rule":     draw(t, record(`{"a":1}`, func(q *lifecycle.OpenRequest) { q.Decision.Message = "other" }), view.Facts{}),
		"other terms":      draw(t, record(`{"a":1}`, func(q *lifecycle.OpenRequest) { q.Decision.Approval.Quorum = 2 }), view.Facts{}),
		"a class":          draw(t, record(`{"a":1}`, classed), view.Facts{}),
	} {
		if other, ok := digests[string(v.GetDigest())]; ok {
			t.Errorf("%s and %s have one digest", name, other)
		}
		digests[string(v.GetDigest())] = name
	}
	again := draw(t, record(`{"a":1}`), view.Facts{})
	if digests[string(again.GetDigest())] != "the base" {
		t.Error("the same view has another digest")
	}
}

// The comparison with the previous call changes the version of a view, but not its digest.
func TestDigest_IgnoresTheComparison(t *testing.T) {
	t.Parallel()
	alone := draw(t, record(`{"a":1}`), view.Facts{})
	beside := draw(t, record(`{"a":1}`), view.Facts{Previous: record(`{"a":2}`)})
	if beside.GetPreviousApprovalId() == "" || beside.GetChangesTotal() != 1 {
		t.Fatalf("the view is not compared with the previous call: %v", beside)
	}
	if !bytes.Equal(alone.GetDigest(), beside.GetDigest()) {
		t.Error("the previous call changes the digest")
	}
	if alone.GetVersion() == beside.GetVersion() {
		t.Error("both views have the same version, so their parts could be mixed")
	}
}

func TestPart_SplitsALargeView(t *testing.T) {
	t.Parallel()
	r := record(`{"a":"` + strings.Repeat("é", 1<<20) + `"}`)
	v, err := view.Draw(r, view.Facts{})
	if err != nil {
		t.Fatal(err)
	}
	var params strings.Builder
	var version string
	for offset := int64(0); ; {
		part, err := v.Part(offset, version)
		if err != nil {
			t.Fatal(err)
		}
		params.WriteString(part.GetParams())
		if version = part.GetVersion(); part.GetParamsOffset() != offset || len(part.GetParams()) > 1<<20 {
			t.Fatalf("a part of %d bytes from %d", len(part.GetParams()), part.GetParamsOffset())
		}
		if (len(part.GetDigest()) == 0) != (part.GetNextOffset() > 0) {
			t.Error("only the last part has the digest")
		}
		if offset = part.GetNextOffset(); offset == 0 {
			break
		}
	}
	if want := "{\n  \"a\": \"" + strings.Repeat("é", 1<<20) + "\"\n}"; params.String() != want {
		t.Error("the parts together differ from the params")
	}
	for offset, want := range map[int64]error{1: view.ErrOffset, 1 << 40: view.ErrOffset} {
		if _, err := v.Part(offset, version); !errors.Is(err, want) {
			t.Errorf("a part from %d: %v", offset, err)
		}
	}
	if _, err := v.Part(1<<20, "other"); !errors.Is(err, view.ErrChanged) {
		t.Errorf("a part of another view: %v", err)
	}
}

func TestDraw_ComparesWithThePreviousCall(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 2000)
	before := record(`{"arguments":{"same":1,"sum":1.50,"gone":true,"list":[1,2],"a/b":"x"}}`)
	v := draw(t, record(`{"arguments":{"same":1,"sum":1.5,"list":[1,3,{}],"a/b":"y","long":"`+long+`"}}`), view.Facts{Previous: before})
	want := []*approvalv1.ArgumentChange{
		{Path: "/arguments/a~1b", Before: `"x"`, After: `"y"`},
		{Path: "/arguments/gone", Before: "true"},
		{Path: "/arguments/list/1", Before: "2", After: "3"},
		{Path: "/arguments/list/2", After: "{}"},
		{Path: "/arguments/long", After: `"` + long[:1023], Cut: true},
		{Path: "/arguments/sum", Before: "1.50", After: "1.5"},
	}
	if diff := cmp.Diff(want, v.GetChanges(), protocmp.Transform()); diff != "" || v.GetChangesTotal() != 6 {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func TestDraw_ReplacesRedactedValues(t *testing.T) {
	t.Parallel()
	r := record(`{"arguments":{"secret":{"deep":"s3cret"},"list":["s3cret","open"]}}`, func(q *lifecycle.OpenRequest) {
		q.Decision.Redactions = []*policyv1.Redaction{{Path: "/arguments/secret"}, {Path: "/arguments/list/0"}}
	})
	v := draw(t, r, view.Facts{Previous: record(`{"arguments":{"secret":{"deep":"s3cret-before"}}}`)})
	raw, err := proto.Marshal(v)
	if err != nil || strings.Contains(string(raw), "s3cret") || !strings.Contains(v.GetParams(), `"secret": "[redacted]"`) || !strings.Contains(v.GetParams(), "open") {
		t.Errorf("the view is %v, %v", v, err)
	}
	if len(v.GetRedacted()) != 2 {
		t.Errorf("redacted %v", v.GetRedacted())
	}
}

// Case X1. A view with long keys at great depth allocates little memory. The test is not parallel because it measures
// the allocations of all goroutines.
func TestDraw_AllocatesLittleForLongKeys(t *testing.T) {
	const depth, values = 58, 9_000
	params := strings.Repeat(`{"`+strings.Repeat("k", 250)+`":`, depth) + "[" + strings.Repeat("1,", values) + "1]" + strings.Repeat("}", depth)
	r := record(params, func(q *lifecycle.OpenRequest) {
		q.Decision.Redactions = []*policyv1.Redaction{{Path: "/arguments/secret"}}
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	draw(t, r, view.Facts{})
	runtime.ReadMemStats(&after)
	if got := (after.TotalAlloc - before.TotalAlloc) >> 20; got > 16 {
		t.Errorf("a view of %d KiB took %d MiB", len(params)>>10, got)
	}
}

func FuzzDraw(f *testing.F) {
	f.Add(`{"a":"\u202e","b":[1,2.50,{"c":null}]}`, `{"a":1}`)
	f.Fuzz(func(t *testing.T, params, before string) {
		v, err := view.Draw(record(params), view.Facts{Previous: record(before)})
		if err != nil {
			return
		}
		part, err := v.Part(0, "")
		if err != nil {
			t.Fatal(err)
		}
		if i := strings.IndexFunc(part.GetParams(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%q hides something", part.GetParams())
		}
	})
}

func TestDraw_WarnsOfAToolThatIsNotListed(t *testing.T) {
	t.Parallel()
	unlisted := record(`{}`, classed, func(q *lifecycle.OpenRequest) { q.Call.Call.DefinitionDigest = nil })
	v := draw(t, unlisted, view.Facts{})
	if w := v.GetWarnings(); len(w) != 1 || !strings.Contains(w[0], "does not list this tool") {
		t.Errorf("warnings are %q", w)
	}
}
