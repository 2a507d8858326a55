package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// fakeReplay is both a gateway and a policy service. The gateway has pages of records. The policy service answers each
// request that contains records with the next one of its prepared responses.
type fakeReplay struct {
	gatewayv1.GatewayServiceClient
	policyv1.PolicyServiceClient

	pages   [][]*gatewayv1.Record
	answers []*policyv1.ReplayDecisionsResponse
	// before is a function that is called each time before the gateway returns a page.
	before func(page int) error
	head   *policyv1.ReplayDecisionsResponse // the answer to the head; nil for an answer without findings
	asked  []*policyv1.RecordedDecisions
	// silent is true if the policy service does not respond to requests that contain records.
	silent bool
}

func (f *fakeReplay) ListDecisions(_ context.Context, req *gatewayv1.ListDecisionsRequest, _ ...grpc.CallOption) (*gatewayv1.ListDecisionsResponse, error) {
	page, _ := strconv.Atoi(req.GetPageToken())
	if f.before != nil {
		if err := f.before(page); err != nil {
			return nil, err
		}
	}
	resp := &gatewayv1.ListDecisionsResponse{Records: f.pages[page], Searched: timestamppb.New(reportNow.Add(-time.Duration(page+1) * time.Hour))}
	if page+1 < len(f.pages) {
		resp.NextPageToken = strconv.Itoa(page + 1)
	}
	return resp, nil
}

// fakeReplayStream is the client's side of the stream of a fakeReplay.
type fakeReplayStream struct {
	grpc.ClientStream

	of   *fakeReplay
	ctx  context.Context //nolint:containedctx // belongs to the stream, as in gRPC
	next *policyv1.ReplayDecisionsResponse
}

func (f *fakeReplay) ReplayDecisions(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[policyv1.ReplayDecisionsRequest, policyv1.ReplayDecisionsResponse], error) {
	return &fakeReplayStream{of: f, ctx: ctx}, nil
}

func (s *fakeReplayStream) Context() context.Context { return s.ctx }

func (s *fakeReplayStream) Send(req *policyv1.ReplayDecisionsRequest) error {
	s.next = &policyv1.ReplayDecisionsResponse{Last: true}
	switch {
	case req.GetHead() != nil && s.of.head != nil:
		s.next = s.of.head
	case req.GetDecisions() != nil:
		s.of.asked = append(s.of.asked, req.GetDecisions())
		if len(s.of.answers) > 0 {
			s.next, s.of.answers = s.of.answers[0], s.of.answers[1:]
		}
		if s.of.silent {
			s.next = nil
		}
	}
	return nil
}

func (s *fakeReplayStream) Recv() (*policyv1.ReplayDecisionsResponse, error) {
	if s.next == nil {
		<-s.ctx.Done()
		return nil, s.ctx.Err()
	}
	return s.next, nil
}

// runTestReplay runs a replay with a fake mesh. It returns what the replay prints, and the error of the replay.
func runTestReplay(ctx context.Context, f *fakeReplay, output string) (out, errOut string, err error) {
	var o, e bytes.Buffer
	t := &tool{self: "sluice", output: output, out: &o, errOut: &e}
	r := newReplayReport(&gatewayv1.DecisionFilter{Since: timestamppb.New(reportNow.Add(-24 * time.Hour))}, reportNow)
	r.progress = &e
	err = t.replayAndPrint(ctx, replayClients{f, f}, nil, r)
	return o.String(), e.String(), err
}

func replayedRecord(tool string, effect policyv1.Effect) *gatewayv1.Record {
	return &gatewayv1.Record{
		Server: "files", Method: "tools/call", Tool: tool, PolicyRevision: strings.Repeat("0", 64), Effect: effect, Count: 1, DecisionId: "id", Time: timestamppb.New(reportNow),
		Principal: &identityv1.Principal{Tenant: "default", Subject: "ana", TokenId: "t", Chain: []*identityv1.Principal{{Tenant: "default", Subject: "eve", TokenId: "u"}}},
	}
}

func replayFlip(kind policyv1.FlipKind, tool, who string, before, after *policyv1.Decision, calls int64) *policyv1.Flip {
	return &policyv1.Flip{
		Call: &policyv1.Call{Server: "files", Method: "tools/call", Name: tool}, Subject: &identityv1.Principal{Tenant: "default", Subject: who},
		Before: before, After: after, Kind: kind, Subjects: 1, Calls: calls, DecisionId: "id",
	}
}

func unknownOf(tool, who string, before policyv1.Effect, mayOpen bool, calls int64, needs ...policyv1.ReplayNeed) *policyv1.UnknownReplay {
	return &policyv1.UnknownReplay{
		Call: &policyv1.Call{Server: "files", Method: "tools/call", Name: tool}, Subject: &identityv1.Principal{Tenant: "default", Subject: who},
		Before: decisionOf(before, ""), Needs: needs, Rules: []*policyv1.RuleRef{{Document: "team", Rule: "tools." + tool}}, MayOpen: mayOpen, Calls: calls,
	}
}

const (
	needsArguments = policyv1.ReplayNeed_REPLAY_NEED_ARGUMENTS
	needsGroups    = policyv1.ReplayNeed_REPLAY_NEED_GROUPS
)

func replayAnswer(totals *policyv1.ReplayTotals, flips []*policyv1.Flip, unknown ...*policyv1.UnknownReplay) *policyv1.ReplayDecisionsResponse {
	return &policyv1.ReplayDecisionsResponse{Flips: flips, Unknown: unknown, Totals: totals, Last: true}
}

// twoPages returns a journal with two pages, and a policy service according to which the documents would allow three
// more calls. One record is about calls that were refused before the policy service evaluated them.
func twoPages() *fakeReplay {
	opens, closes := policyv1.FlipKind_FLIP_KIND_OPENS, policyv1.FlipKind_FLIP_KIND_CLOSES
	early := &gatewayv1.Record{Effect: refused, Code: commonv1.Code_CODE_ABUSE_LIMITED, Count: 7}
	drop := func(calls int64) *policyv1.Flip {
		return replayFlip(opens, "drop", "ana", decisionOf(refused, "no"), decisionOf(allowed, "tools.drop"), calls)
	}
	return &fakeReplay{
		pages: [][]*gatewayv1.Record{{replayedRecord("drop", refused), early}, {replayedRecord("read", allowed)}},
		answers: []*policyv1.ReplayDecisionsResponse{
			replayAnswer(&policyv1.ReplayTotals{Same: 1, Different: 11, Unknown: 4},
				[]*policyv1.Flip{replayFlip(closes, "read", "ana", decisionOf(allowed, "tools.read"), decisionOf(held, "tools.read"), 9), drop(2)},
				unknownOf("pay", "ana", refused, true, 1, needsArguments), unknownOf("pay", "ben", refused, true, 3, needsArguments)),
			replayAnswer(&policyv1.ReplayTotals{Same: 5, Different: 12, Unknown: 5, Others: []*policyv1.OtherRefusals{{Code: commonv1.Code_CODE_RATE_LIMITED, Calls: 2}, {Code: commonv1.Code_CODE_ABUSE_LIMITED, Calls: 1}}},
				[]*policyv1.Flip{drop(1)}, unknownOf("tag", "eve", allowed, false, 1, needsArguments, needsGroups)),
		},
	}
}

func TestReplay_PrintsWhatOpensFirst(t *testing.T) {
	t.Parallel()
	f := twoPages()
	out, _, err := runTestReplay(t.Context(), f, "table")
	const want = `From 2026-11-30 12:00:00 to 2026-12-01 12:00:00: 32 calls (3 open, 9 close, 5 same, 5 unknown).

CALLS  RESULT                     WHAT        WHO  RULE
3      deny -> allow              files/drop  ana  team/no -> team/tools.drop
9      allow -> require_approval  files/read  ana  team/tools.read

The result of these calls is unknown, because it depends on what the journal does not contain:
CALLS  WHAT       DEPENDS ON                RULE            MAY OPEN
4      files/pay  arguments                 team/tools.pay  yes
1      files/tag  arguments; groups of eve  team/tools.tag  no

Not replayed, because they were refused for a reason other than rules: 8 abuse_limited, 2 rate_limited.
`
	if diff := cmp.Diff(want, out); diff != "" || !errors.Is(err, errSilent) {
		t.Errorf("%v; printed (-want +got):\n%s", err, diff)
	}
	got := f.asked[0].GetDecisions()[0]
	sent := &policyv1.RecordedDecision{
		Call: &policyv1.Call{Server: "files", Method: "tools/call", Name: "drop"}, Decision: &policyv1.Decision{Effect: refused}, Count: 1, DecisionId: "id", Time: timestamppb.New(reportNow),
		Subject: got.GetSubject(),
	}
	if who := got.GetSubject(); !proto.Equal(got, sent) || who.GetTokenId() != "t" || who.GetChain()[0].GetTokenId() != "u" || who.GetRole() == 0 || len(f.asked) != 2 || len(f.asked[0].GetDecisions()) != 1 {
		t.Errorf("the policy service was sent %v", f.asked)
	}
}

func TestReplay_JSONHasAllRows(t *testing.T) {
	t.Parallel()
	out, _, err := runTestReplay(t.Context(), twoPages(), "json")
	var got replayJSON
	if err2 := json.Unmarshal([]byte(out), &got); err2 != nil || !errors.Is(err, errSilent) {
		t.Fatalf("%v, %v: %s", err, err2, out)
	}
	if got.Calls != 32 || got.Opened != 3 || got.Closed != 9 || got.Same != 5 || got.Unknown != 5 || got.MayOpen != 4 || !got.Complete ||
		len(got.Flips) != 2 || len(got.UnknownCalls) != 3 || fmt.Sprint(got.Others) != "[{abuse_limited 8} {rate_limited 2}]" || got.WithoutRow != 0 {
		t.Errorf("printed %s", out)
	}
}

// If the replayed documents would allow no more calls, replay returns no error. It returns an error if the documents do
// not load, if the gateway can't list the records, or if it is not known whether a refused call would be allowed.
func TestReplay_ResultDependsOnWhatOpens(t *testing.T) {
	t.Parallel()
	page := [][]*gatewayv1.Record{{replayedRecord("read", allowed)}}
	closes := replayFlip(policyv1.FlipKind_FLIP_KIND_CLOSES, "read", "ana", decisionOf(allowed, ""), decisionOf(refused, ""), 1)
	for name, tt := range map[string]struct {
		f    *fakeReplay
		want string
	}{
		"nothing differs":  {&fakeReplay{pages: page, answers: []*policyv1.ReplayDecisionsResponse{replayAnswer(&policyv1.ReplayTotals{Same: 1}, nil)}}, ""},
		"a call is closed": {&fakeReplay{pages: page, answers: []*policyv1.ReplayDecisionsResponse{replayAnswer(&policyv1.ReplayTotals{Different: 1}, []*policyv1.Flip{closes})}}, ""},
		"an allowed call is unknown": {&fakeReplay{pages: page, answers: []*policyv1.ReplayDecisionsResponse{
			replayAnswer(&policyv1.ReplayTotals{Unknown: 1}, nil, unknownOf("read", "ana", allowed, false, 1, needsArguments)),
		}}, ""},
		"a call may open": {&fakeReplay{pages: page, answers: []*policyv1.ReplayDecisionsResponse{
			replayAnswer(&policyv1.ReplayTotals{Unknown: 1}, nil, unknownOf("read", "ana", refused, true, 1, needsArguments)),
		}}, "the replay is incomplete: the result of 1 call"},
		"no records": {&fakeReplay{pages: [][]*gatewayv1.Record{nil}}, ""},
		"the documents do not load": {&fakeReplay{pages: page, head: &policyv1.ReplayDecisionsResponse{
			Findings: []*policyv1.Finding{{Path: "a.yaml", Line: 1, Column: 2, Message: "is wrong"}}, Last: true,
		}}, "the documents do not load:\na.yaml:1:2: is wrong"},
		"the policy service fails": {&fakeReplay{pages: page, before: func(int) error { return io.ErrUnexpectedEOF }}, "unexpected EOF"},
	} {
		_, _, err := runTestReplay(t.Context(), tt.f, "table")
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// The person presses Ctrl-C during a replay. The command prints the results so far.
func TestReplay_InterruptPrintsWhatWasFound(t *testing.T) {
	t.Parallel()
	for name, opens := range map[string]bool{"and a call opens": true, "and nothing opens": false} {
		ctx, cancel := context.WithCancel(t.Context())
		f := twoPages()
		if !opens {
			f.answers[0].Flips, f.answers[0].Unknown = f.answers[0].Flips[:1], nil
		}
		f.before = func(page int) error {
			if page == 1 {
				cancel()
			}
			return ctx.Err()
		}
		out, _, err := runTestReplay(ctx, f, "table")
		if !strings.HasPrefix(out, "From 2026-12-01 11:00:00 to 2026-12-01 12:00:00: ") || !strings.Contains(out, "files/read") {
			t.Errorf("%s: printed\n%s", name, out)
		}
		if opens != errors.Is(err, errSilent) || err == nil || !opens && !strings.Contains(err.Error(), "calls before 2026-12-01 11:00:00 are missing") {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := twoPages()
	f.before = func(int) error { return ctx.Err() }
	if _, _, err := runTestReplay(ctx, f, "table"); err == nil || err.Error() != "interrupted before any call was read" {
		t.Errorf("interrupted at once: %v", err)
	}
}

func TestReplay_ReportsProgressAndTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := twoPages()
		f.before = func(int) error {
			time.Sleep(3 * time.Second)
			return nil
		}
		if _, errOut, _ := runTestReplay(t.Context(), f, "table"); errOut != "sluice: replayed 23 calls so far, back to 2026-12-01 11:00:00\n" {
			t.Errorf("the progress is %q", errOut)
		}
		f = twoPages()
		f.silent = true
		if _, _, err := runTestReplay(t.Context(), f, "table"); !errors.Is(err, errNoAnswer) {
			t.Errorf("without an answer: %v", err)
		}
	})
}

// A report has at most maxReplayRows rows of each kind. Calls for which a further row would be needed are only counted.
func TestReplay_LimitsItsRows(t *testing.T) {
	t.Parallel()
	r := newReplayReport(new(gatewayv1.DecisionFilter), reportNow)
	for i := range maxReplayRows + 3 {
		who := fmt.Sprintf("ana%d", i)
		r.add(replayAnswer(nil, []*policyv1.Flip{replayFlip(policyv1.FlipKind_FLIP_KIND_OPENS, "t", who, decisionOf(refused, ""), decisionOf(allowed, ""), 2)}, unknownOf("t", who, refused, true, 1, needsArguments)))
	}
	if len(r.flips.all) != maxReplayRows || len(r.unknown.all) != maxReplayRows || r.flips.others != 6 || r.unknown.others != 3 || r.opened != 2*maxReplayRows+6 || r.mayOpen != maxReplayRows+3 {
		t.Errorf("%d flips, %d unknown, others %d and %d, opened %d, may open %d", len(r.flips.all), len(r.unknown.all), r.flips.others, r.unknown.others, r.opened, r.mayOpen)
	}
}
