package policy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// diffTexts compares two documents. It returns the totals, and all flips (calls whose result changes) in the order in
// which they were sent.
func diffTexts(ctx context.Context, t *testing.T, before, after string, change func(d *documentsDiffer)) (flips []*policyv1.Flip, totals *policyv1.DiffTotals) {
	t.Helper()
	d, err := offlineDiffer(ctx, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	change(d)
	documents := func(text string) []*policyv1.Document { return []*policyv1.Document{{Path: "a.yaml", Text: text}} }
	err = d.diff(ctx, documents(before), documents(after), func(part []*policyv1.Flip, last *policyv1.DiffTotals) error {
		flips, totals = append(flips, part...), last
		return nil
	})
	if err != nil || len(totals.GetFindings()) > 0 {
		t.Fatal(err, totals.GetFindings())
	}
	return flips, totals
}

// heavyText returns a document with one tool whose decision depends on many conditions and callers.
func heavyText(action string) string {
	var out strings.Builder
	out.WriteString("version: 1\nname: a\nserver: s\ndefault: deny\nrules:\n")
	for i := range 6 {
		fmt.Fprintf(&out, "- {name: c%d, match: {tool: alpha}, action: %s, when: 'args.k%d == \"v\"'}\n", i, action, i)
	}
	for i := range 190 {
		fmt.Fprintf(&out, "- {name: p%d, match: {tool: alpha, principal: p%d}, action: deny, when: 'args.k0 == \"w\"'}\n", i, i)
	}
	return out.String()
}

// Comparing the calls of one tool takes seconds. Meanwhile, the comparison repeatedly gives way to other work. It ends
// when its context is cancelled.
func TestDiff_GivesOthersTheirTurnWithinOneTool(t *testing.T) {
	t.Parallel()
	for _, recorded := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		slices, working := 0, false
		_, totals := diffTexts(ctx, t, heavyText("deny"), heavyText("allow"), func(d *documentsDiffer) {
			for i := range 2000 {
				if recorded {
					d.recorded = append(d.recorded, recordedOf("alpha", fmt.Sprint("r", i), 1))
				}
			}
			d.clock.slice = func(context.Context) (func(), error) {
				if slices++; slices == 5 {
					cancel()
				}
				if working {
					t.Error("two slices at once")
				}
				working = true
				return func() { working = false }, nil
			}
		})
		if slices != 5 || working || !totals.GetEndedEarly() || totals.GetCompared() == 0 {
			t.Errorf("%d slices, the last one ended: %t, %v", slices, !working, totals)
		}
		cancel()
	}
}

// Work before the comparison, such as reading the documents, does not count toward the comparison's limit.
func TestDiffClock_PreparationsDoNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := diffClock{limit: time.Second, slice: func(context.Context) (func(), error) { return func() {}, nil }}
		if err := c.resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		c.startPass(-1)
		steps := 0
		for {
			ok, err := c.step(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			steps++
			time.Sleep(10 * time.Millisecond)
		}
		if steps < 100 || steps > 110 {
			t.Errorf("%d steps of 10 ms in a second", steps)
		}
	})
}

// A client reads the flips so slowly that the service still sends them after the time limit. The sender then returns an
// error.
func TestLimitSends_EndsAComparisonThatIsReadSlowly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		sent := 0
		send := limitSends(ctx, func([]*policyv1.Flip, *policyv1.DiffTotals) error {
			sent++
			time.Sleep(25 * time.Second)
			return nil
		})
		var err error
		for err == nil && sent < 100 {
			err = send(nil, nil)
		}
		if !errors.Is(err, errDiffEnded) || sent != 3 {
			t.Errorf("%d parts were sent, and then %v", sent, err)
		}
	})
}

// The documents have many servers and many tools, so there are very many combinations of a server and a tool. The
// comparison ends when its context is cancelled.
func TestDiff_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 4000 {
		names = append(names, fmt.Sprint("q", i))
	}
	text := func(action string) string {
		list := strings.Join(names, ", ")
		return "version: 1\nname: q\ndefault: deny\nrules:\n- {name: a, match: {server: [" + list + "], tool: zzz}, action: deny}\n- {name: b, match: {tool: [" + list + "]}, action: " + action + "}\n"
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, totals := diffTexts(ctx, t, text("deny"), text("allow"), func(d *documentsDiffer) {
		d.clock.slice = func(context.Context) (func(), error) {
			cancel() // while the documents are parsed
			return func() {}, nil
		}
	})
	if totals.GetCompared() != 0 || !totals.GetEndedEarly() {
		t.Errorf("%v", totals)
	}
}

// The comparison of one tool's calls finds many large flips, which are calls whose result changes. The flips are sent
// in several parts.
func TestDiff_SendsPartsOfOneTool(t *testing.T) {
	t.Parallel()
	text := func(action string) string {
		var out strings.Builder
		out.WriteString("version: 1\nname: a\nserver: s\ndefault: deny\nrules:\n")
		var paths []string
		for i := range 100 {
			paths = append(paths, fmt.Sprintf("/%s/%d", strings.Repeat("path", 20), i))
		}
		fmt.Fprintf(&out, "- {name: all, match: {tool: '*'}, redact: {results: {paths: [%s]}}}\n", strings.Join(paths, ","))
		for i := range 190 {
			fmt.Fprintf(&out, "- {name: r%d, match: {principal: p%d}, action: %s}\n", i, i, action)
		}
		return out.String()
	}
	d, err := offlineDiffer(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	parts := 0
	var last *policyv1.DiffTotals
	documents := func(text string) []*policyv1.Document { return []*policyv1.Document{{Path: "a.yaml", Text: text}} }
	err = d.diff(t.Context(), documents(text("require_approval")), documents(text("allow")), func(flips []*policyv1.Flip, totals *policyv1.DiffTotals) error {
		size := 0
		for _, f := range flips {
			size += proto.Size(f)
		}
		if parts, last = parts+1, totals; size > maxFlipPart+maxFlipPart/10 {
			t.Errorf("a part has %d bytes", size)
		}
		return nil
	})
	if err != nil || parts < 4 || last.GetEndedEarly() || last.GetOpened() < 190 {
		t.Errorf("%d parts, %v, %v", parts, last, err)
	}
}

func recordedOf(tool, subject string, count int64) *policyv1.RecordedCall {
	return &policyv1.RecordedCall{
		Call:    &policyv1.Call{Server: "s", Method: "tools/call", Name: tool},
		Subject: &identityv1.Principal{Tenant: "default", Subject: subject, Agent: "coder"}, Count: count, DecisionId: subject,
	}
}

// Flips (calls whose result changes) of recorded calls come first, sorted by the number of calls. Each flip lists the
// recorded callers first, and each caller only once.
func TestDiff_RecordedCallsComeFirst(t *testing.T) {
	t.Parallel()
	const head = "version: 1\nname: a\nserver: s\ndefault: allow\nrules:\n- {name: x, match: {tool: unused}, action: deny}\n"
	const denied = "- {name: a, match: {tool: alpha, principal: bob}, action: deny}\n- {name: b, match: {tool: beta, principal: bob}, action: deny}\n- {name: g, match: {tool: gamma}, action: deny}\n"
	for _, texts := range [][]string{{head + denied, head}, {head, head + denied}} {
		flips, totals := diffTexts(t.Context(), t, texts[0], texts[1], func(d *documentsDiffer) {
			d.cfg.Tokens = []*identityv1.Token{{Tenant: "default", Subject: "bob", Agent: "coder", Owner: "ana", Role: authv1.TokenRole_TOKEN_ROLE_AGENT}}
			d.recorded = []*policyv1.RecordedCall{
				recordedOf("alpha", "ana", 100), recordedOf("alpha", "bob", 1), recordedOf("beta", "bob", 50), recordedOf("beta", "bob", math.MaxInt64),
			}
		})
		SortFlips(flips)
		if len(flips) != 3 || totals.GetTotal() != 3 {
			t.Fatalf("%v", flips)
		}
		for i, want := range []struct {
			name     string
			calls    int64
			subject  string
			subjects int64
		}{{"beta", math.MaxInt64, "bob", 2}, {"alpha", 1, "bob", 2}, {"gamma", 0, "any-other-caller", 3}} {
			f := flips[i]
			if f.GetCall().GetName() != want.name || f.GetCalls() != want.calls || f.GetSubject().GetSubject() != want.subject || f.GetSubjects() != want.subjects {
				t.Errorf("%d: %v", i, f)
			}
		}
	}
}

// Flips (calls whose result changes) need too much memory to be kept until they are sent. A second pass finds them
// again, but it ends early. The totals say how many flips the first pass found.
func TestFlipStream_TotalsSayThatFlipsAreMissing(t *testing.T) {
	t.Parallel()
	const found = 3000
	flips := make([]*policyv1.Flip, found)
	for i := range flips {
		flips[i] = &policyv1.Flip{
			Call: &policyv1.Call{Name: strings.Repeat("x", 2000)}, Kind: policyv1.FlipKind_FLIP_KIND_OPENS,
			Before: &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY}, After: &policyv1.Decision{Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL},
		}
	}
	sent, totals := 0, new(policyv1.DiffTotals)
	stream := newFlipStream(totals, func(part []*policyv1.Flip, _ *policyv1.DiffTotals) error {
		sent += len(part)
		return nil
	})
	err := stream.sendFlips(func(first bool, emit flipSink) (bool, error) {
		if !first {
			return false, emit(flips[:10])
		}
		return true, emit(flips)
	})
	if err == nil {
		err = stream.finish(nil)
	}
	if err != nil || sent != 10 || totals.GetTotal() != found || totals.GetOpened() != found || !totals.GetEndedEarly() {
		t.Errorf("%d sent, %v, %v", sent, totals, err)
	}
}
