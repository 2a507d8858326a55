package policy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/norace"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

const (
	approval = policyv1.Effect_EFFECT_REQUIRE_APPROVAL
	byRule   = commonv1.Code_CODE_DENIED_BY_RULE
)

// recorded returns a record of a call to a tool on the server demo.
func recorded(tool, subject string, effect policyv1.Effect, code commonv1.Code) *policyv1.RecordedDecision {
	return &policyv1.RecordedDecision{
		Call: &policyv1.Call{Server: "demo", Method: "tools/call", Name: tool}, Subject: rpctest.Principal("default", subject),
		Decision: &policyv1.Decision{Effect: effect, Code: code}, Count: 1, DecisionId: "id-" + tool,
	}
}

type replayClient = grpc.BidiStreamingClient[policyv1.ReplayDecisionsRequest, policyv1.ReplayDecisionsResponse]

func headOf(documents ...*policyv1.Document) *policyv1.ReplayDecisionsRequest {
	return &policyv1.ReplayDecisionsRequest{Part: &policyv1.ReplayDecisionsRequest_Head{Head: &policyv1.ReplayHead{Documents: documents}}}
}

func recordsOf(records ...*policyv1.RecordedDecision) *policyv1.ReplayDecisionsRequest {
	return &policyv1.ReplayDecisionsRequest{Part: &policyv1.ReplayDecisionsRequest_Decisions{Decisions: &policyv1.RecordedDecisions{Decisions: records}}}
}

// replayStep sends a request and returns all responses to it, merged into one.
func replayStep(t testing.TB, stream replayClient, req *policyv1.ReplayDecisionsRequest) *policyv1.ReplayDecisionsResponse {
	t.Helper()
	if err := stream.Send(req); err != nil {
		t.Fatal(err)
	}
	out := new(policyv1.ReplayDecisionsResponse)
	for !out.GetLast() {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		out.Findings, out.Flips, out.Unknown = append(out.Findings, resp.GetFindings()...), append(out.Flips, resp.GetFlips()...), append(out.Unknown, resp.GetUnknown()...)
		out.Last, out.Totals = resp.GetLast(), resp.GetTotals()
	}
	return out
}

// beginReplay opens a replay with the given documents.
func beginReplay(t testing.TB, conn *grpc.ClientConn, documents ...*policyv1.Document) replayClient {
	t.Helper()
	stream, err := policyv1.NewPolicyServiceClient(conn).ReplayDecisions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if resp := replayStep(t, stream, headOf(documents...)); len(resp.GetFindings()) > 0 {
		t.Fatal(resp.GetFindings())
	}
	return stream
}

// replayLines describes the results of a replay, with one result on each line.
func replayLines(resp *policyv1.ReplayDecisionsResponse) string {
	var out []string
	effect := func(d *policyv1.Decision) string {
		if would := d.GetObserved(); would != nil {
			return enum.Name(d.GetEffect()) + " (would " + enum.Name(would.GetEffect()) + ")"
		}
		return enum.Name(d.GetEffect())
	}
	for _, f := range resp.GetFlips() {
		out = append(out, fmt.Sprintf("%s %s by %s: %s -> %s %s, calls %d %s", enum.Name(f.GetKind()), f.GetCall().GetName(), f.GetSubject().GetSubject(),
			effect(f.GetBefore()), effect(f.GetAfter()), f.GetAfter().GetRule().GetRule(), f.GetCalls(), f.GetDecisionId()))
	}
	for _, u := range resp.GetUnknown() {
		var rules []string
		for _, r := range u.GetRules() {
			rules = append(rules, r.GetRule())
		}
		out = append(out, fmt.Sprintf("unknown %s by %s: %s, needs %v of %v, may open %t, calls %d", u.GetCall().GetName(), u.GetSubject().GetSubject(),
			effect(u.GetBefore()), u.GetNeeds(), rules, u.GetMayOpen(), u.GetCalls()))
	}
	totals := fmt.Sprintf("same %d, different %d, unknown %d", resp.GetTotals().GetSame(), resp.GetTotals().GetDifferent(), resp.GetTotals().GetUnknown())
	for _, o := range resp.GetTotals().GetOthers() {
		totals += fmt.Sprintf(", %s %d", enum.Name(o.GetCode()), o.GetCalls())
	}
	return strings.Join(append(out, totals), "\n")
}

// If the arguments of a recorded call are known, they are used for the decision. If they are unknown and the decision
// depends on them, the decision is unknown too. Calls with equal arguments are evaluated only once.
func TestReplayDecisions_ReadsKnownArguments(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	stream := beginReplay(t, s.Person(t, "viewer"), documentOf(draft)...)
	with := func(id, arguments string) *policyv1.RecordedDecision {
		one := recorded("write", "agent", allow, 0)
		one.DecisionId = id
		one.Call.ParamsJson, one.ArgumentsKnown = `{"name":"write","arguments":`+arguments+`}`, true
		return one
	}
	ignored := with("4", `{"path":"/a"}`)
	ignored.ArgumentsKnown = false
	resp := replayStep(t, stream, recordsOf(with("1", `{"path":"/a"}`), with("2", `{"path":"/b"}`), with("3", `{"Path":"/a"}`), ignored, with("5", `{"path":"/b"}`), with("6", `7`)))
	want := `closes write by agent: allow -> deny , calls 2 2
closes write by agent: allow -> deny tools.write, calls 1 3
closes write by agent: allow -> deny tools.write, calls 1 6
unknown write by agent: allow, needs [REPLAY_NEED_ARGUMENTS] of [tools.write], may open false, calls 1
same 1, different 4, unknown 1`
	if diff := cmp.Diff(want, replayLines(resp)); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
}

const draft = `version: 1
name: draft
server: demo
default: deny
tools:
  read:   {action: allow}
  remove: {action: allow}
  export: {action: require_approval}
  write:  {action: allow, when: args.path == "/a"}
  drop:   {action: deny}
rules:
  - {name: devs, match: {tool: deploy, groups: [developers]}, action: allow}
  - {name: readers, match: {tool: stat, category: read}, action: allow}
  - {name: doc, match: {uri: "file:///doc/*"}, action: allow}
`

func devToken() *identityv1.TokenRecord {
	r := rpctest.Record("dev", "default", authv1.TokenRole_TOKEN_ROLE_AGENT)
	r.Token.Groups = []string{"developers"}
	return r
}

func TestReplayDecisions_ReturnsCallsWithAnotherDecision(t *testing.T) {
	t.Parallel()
	s := serve(t, options{tokens: append(records(), devToken())})
	stream := beginReplay(t, s.Person(t, "viewer"), documentOf(draft)...)
	digest := recorded("stat", "agent", allow, 0)
	digest.Call.DefinitionDigest = bytes.Repeat([]byte{1}, 32)
	uri := recorded("file:///doc/a", "agent", allow, 0)
	uri.Call.Method = "resources/read"
	observed := recorded("drop", "agent", allow, 0)
	observed.Decision.Observed = &policyv1.Observation{Effect: deny, Code: byRule}
	opensLater := recorded("read", "agent", allow, 0)
	opensLater.Decision.Observed = &policyv1.Observation{Effect: deny, Code: byRule}
	many := recorded("spam", "agent", deny, commonv1.Code_CODE_ABUSE_LIMITED)
	many.Count = 40
	unknownTool := recorded("nosuch", "agent", deny, commonv1.Code_CODE_TOOL_UNKNOWN)
	first := replayStep(t, stream, recordsOf(
		recorded("read", "agent", allow, 0), recorded("read", "agent", allow, 0),
		recorded("remove", "agent", deny, byRule), recorded("remove", "agent", deny, byRule),
		recorded("export", "agent", allow, 0), recorded("export", "agent", deny, byRule),
		recorded("write", "agent", allow, 0), recorded("write", "agent", deny, byRule),
		recorded("deploy", "dev", allow, 0), recorded("deploy", "agent", allow, 0), recorded("deploy", "gone", deny, byRule),
		digest, uri, observed, opensLater, many, unknownTool,
		recorded("read", "agent", deny, commonv1.Code_CODE_RATE_LIMITED), recorded("remove", "agent", approval, commonv1.Code_CODE_APPROVAL_DENIED),
	))
	const want = `opens remove by agent: deny -> allow tools.remove, calls 2 id-remove
closes export by agent: allow -> require_approval tools.export, calls 1 id-export
opens export by agent: deny -> require_approval tools.export, calls 1 id-export
closes deploy by agent: allow -> deny , calls 1 id-deploy
closes drop by agent: allow (would deny) -> deny tools.drop, calls 1 id-drop
opens read by agent: allow (would deny) -> allow tools.read, calls 1 id-read
opens remove by agent: require_approval -> allow tools.remove, calls 1 id-remove
unknown write by agent: allow, needs [REPLAY_NEED_ARGUMENTS] of [tools.write], may open false, calls 1
unknown write by agent: deny, needs [REPLAY_NEED_ARGUMENTS] of [tools.write], may open true, calls 1
unknown deploy by gone: deny, needs [REPLAY_NEED_GROUPS] of [devs], may open true, calls 1
unknown stat by agent: allow, needs [REPLAY_NEED_DEFINITION] of [readers], may open false, calls 1
unknown file:///doc/a by agent: allow, needs [REPLAY_NEED_NAME] of [doc], may open false, calls 1
same 3, different 8, unknown 5, abuse_limited 40, tool_unknown 1, rate_limited 1`
	if diff := cmp.Diff(want, replayLines(first)); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	second := replayStep(t, stream, recordsOf(recorded("remove", "agent", deny, byRule)))
	if got := replayLines(second); got != "opens remove by agent: deny -> allow tools.remove, calls 1 id-remove\nsame 3, different 9, unknown 5, abuse_limited 40, tool_unknown 1, rate_limited 1" {
		t.Errorf("the second batch:\n%s", got)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
}

// A replay without documents uses the active documents. It makes the same decisions on recorded calls as these
// documents made before.
func TestReplayDecisions_UsesTheActiveDocumentsByDefault(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	stream := beginReplay(t, s.Person(t, "operator"))
	resp := replayStep(t, stream, recordsOf(recorded("read", "agent", allow, 0), recorded("remove", "agent", deny, byRule), recorded("pay", "agent", approval, commonv1.Code_CODE_APPROVAL_REQUIRED), recorded("drop", "agent", allow, 0)))
	if got, want := replayLines(resp), "closes drop by agent: allow -> deny tools.drop, calls 1 id-drop\nsame 3, different 1, unknown 0"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Two valid tokens of one caller have different groups, so the groups of a recorded call are known only if the record
// contains the name of the token. They are not known if the record contains the name of another caller's token.
func TestReplayDecisions_UsesTheGroupsOfTheRecordedToken(t *testing.T) {
	t.Parallel()
	second := rpctest.Record("dev2", "default", authv1.TokenRole_TOKEN_ROLE_AGENT)
	second.Token.Subject = "dev"
	s := serve(t, options{tokens: append(records(), devToken(), second)})
	stream := beginReplay(t, s.Person(t, "viewer"), documentOf(draft)...)
	of := func(subject, token string) *policyv1.RecordedDecision {
		r := recorded("deploy", subject, allow, 0)
		r.Subject.TokenId = token
		return r
	}
	ofIssuer := of("dev", "dev")
	ofIssuer.Subject.Issuer = "corp"
	for name, tt := range map[string]struct {
		record *policyv1.RecordedDecision
		want   string
	}{
		"the token with the group":    {of("dev", "dev"), "same"},
		"the token without the group": {of("dev", "dev2"), "closes"},
		"no token":                    {of("dev", ""), "unknown"},
		"another caller's token":      {of("ben", "dev"), "unknown"},
		"a JWT":                       {ofIssuer, "unknown"},
	} {
		if got := replayLines(replayStep(t, stream, recordsOf(tt.record))); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestReplayDecisions_Refuses(t *testing.T) {
	t.Parallel()
	l := accessFixture(t)
	first := func(token string, req *policyv1.ReplayDecisionsRequest) error {
		stream, err := policyv1.NewPolicyServiceClient(l.Person(t, token)).ReplayDecisions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(req); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		return err
	}
	rpctest.WantStatus(t, first("acme-viewer", headOf()), codes.PermissionDenied, "TENANT_REFUSED")
	rpctest.WantStatus(t, first("viewer", recordsOf(recorded("read", "agent", allow, 0))), codes.InvalidArgument, "REPLAY_DISORDER")
	rpctest.WantStatus(t, first("viewer", new(policyv1.ReplayDecisionsRequest)), codes.InvalidArgument, "INVALID_REQUEST")
	stream := beginReplay(t, l.Person(t, "viewer"))
	if err := stream.Send(headOf()); err != nil {
		t.Fatal(err)
	}
	_, err := stream.Recv()
	rpctest.WantStatus(t, err, codes.InvalidArgument, "REPLAY_DISORDER")
	broken, err := policyv1.NewPolicyServiceClient(l.Person(t, "viewer")).ReplayDecisions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if resp := replayStep(t, broken, headOf(documentOf("version: 2\n")...)); len(resp.GetFindings()) == 0 {
		t.Error("a document that does not load has no findings")
	}
	if _, err := broken.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the findings the stream ended with %v", err)
	}
}

// A person can have one replay at a time. A second replay by the same person begins when the first has ended. Another
// person does not have to wait.
func TestReplayDecisions_OneReplayForEachPerson(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	one := beginReplay(t, s.Person(t, "viewer"))
	beginReplay(t, s.Person(t, "operator"))
	began := make(chan struct{})
	second, err := policyv1.NewPolicyServiceClient(s.Person(t, "viewer")).ReplayDecisions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Send(headOf()); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(began)
		if _, err := second.Recv(); err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-began:
		t.Error("the second replay has begun while the first is open")
	case <-time.After(100 * time.Millisecond):
	}
	if err := one.CloseSend(); err != nil {
		t.Fatal(err)
	}
	<-began
}

// silentReplay is the server's side of a replay. Its client sends at most a head, and nothing after that.
type silentReplay struct {
	grpc.ServerStream

	ctx   context.Context //nolint:containedctx // belongs to the stream, as in gRPC
	heads int
}

func (s *silentReplay) Context() context.Context { return s.ctx }

func (*silentReplay) Send(*policyv1.ReplayDecisionsResponse) error { return nil }

func (s *silentReplay) Recv() (*policyv1.ReplayDecisionsRequest, error) {
	if s.heads--; s.heads >= 0 {
		return headOf(), nil
	}
	<-s.ctx.Done()
	return nil, s.ctx.Err()
}

// If a client sends nothing for two minutes, the service ends its replay. Therefore the client can't occupy the replay
// slot for longer.
func TestReplayDecisions_EndsWhenTheClientIsSilent(t *testing.T) {
	t.Parallel()
	svc, _ := build(t, options{})
	for _, heads := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(authn.WithCaller(t.Context(), &authn.Caller{Person: rpctest.Principal("default", "viewer")}))
			defer cancel()
			began := time.Now()
			err := svc.ReplayDecisions(&silentReplay{ctx: ctx, heads: heads})
			rpctest.WantStatus(t, err, codes.DeadlineExceeded, "REPLAY_ENDED")
			if took := time.Since(began); took != 2*time.Minute {
				t.Errorf("it ended after %v", took)
			}
		})
	}
}

// The results for a batch of different calls with long names are split into several responses. Each response is smaller
// than the maximum size of a message.
func TestReplayDecisions_SplitsLargeResults(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	stream := beginReplay(t, s.Person(t, "viewer"))
	var batch []*policyv1.RecordedDecision
	for i := range 1000 {
		r := recorded(fmt.Sprintf("file:///%d%s", i, strings.Repeat("x", 4000)), "agent", allow, 0)
		r.Call.Method, r.DecisionId = "resources/read", "id"
		batch = append(batch, r)
	}
	if err := stream.Send(recordsOf(batch...)); err != nil {
		t.Fatal(err)
	}
	responses, flips := 0, 0
	for last := false; !last; responses++ {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		flips, last = flips+len(resp.GetFlips()), resp.GetLast()
	}
	if flips != 1000 || responses < 4 {
		t.Errorf("%d flips in %d responses", flips, responses)
	}
}

// A rule reads the time. Two calls that differ only in their time get different results.
func TestReplayDecisions_EvaluatesConditionsAtTheTimeOfTheCall(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	const office = "version: 1\nname: d\nserver: demo\ndefault: deny\nrules: [{name: office, match: {tool: read}, when: now.getHours() < 18, action: allow}]"
	stream := beginReplay(t, s.Person(t, "viewer"), documentOf(office)...)
	at := func(hour int) *policyv1.RecordedDecision {
		r := recorded("read", "agent", allow, 0)
		r.Time = timestamppb.New(time.Date(2026, 12, 1, hour, 0, 0, 0, time.UTC))
		return r
	}
	resp := replayStep(t, stream, recordsOf(at(12), at(20), at(13)))
	if got, want := replayLines(resp), "closes read by agent: allow -> deny , calls 1 id-read\nsame 2, different 1, unknown 0"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The test draws random documents without conditions on arguments. A replay with these documents must have the same
// results as ExplainCall in a mesh in which the documents are active.
func TestReplayDecisions_AgreesWithExplainCallForSeededDocuments(t *testing.T) {
	t.Parallel()
	tokens := append(records(), devToken())
	base := serve(t, options{tokens: tokens})
	random := rand.New(rand.NewPCG(1, 2))
	one := func(list ...string) string { return list[random.IntN(len(list))] }
	for round := range norace.Some(25) {
		text := "version: 1\nname: d\nserver: demo\ndefault: " + one("deny", "allow", "by_risk") + "\nrules:\n"
		for i := range 4 {
			text += fmt.Sprintf("  - {name: r%d, match: {tool: %s%s}, action: %s%s}\n", i, one("read", "remove", "pay", `"*"`, `"re*"`),
				one("", "", ", groups: [developers]", ", principal: [agent]"), one("allow", "deny", "require_approval", "hide"),
				one("", "", `, when: '"developers" in caller.groups', otherwise: {action: deny}`))
		}
		until := engine.Observe{}
		if random.IntN(3) == 0 {
			until.All = time.Now().Add(time.Hour)
		}
		t.Run(fmt.Sprint(round), func(t *testing.T) { // the servers of a round end with it
			explains := policyv1.NewPolicyServiceClient(serve(t, options{paths: []string{folder(t, text)}, tokens: tokens, observe: until}).Person(t, "operator"))
			replays := base
			if !until.All.IsZero() {
				replays = serve(t, options{tokens: tokens, observe: until})
			}
			checkReplay(t, text, explains, beginReplay(t, replays.Person(t, "viewer"), documentOf(text)...))
		})
	}
}

// checkReplay checks that a replay has the same results as ExplainCall. Both use the document with the given text.
func checkReplay(t *testing.T, text string, explains policyv1.PolicyServiceClient, stream replayClient) {
	t.Helper()
	for _, tool := range []string{"read", "remove", "pay", "other"} {
		for _, subject := range []string{"agent", "dev", "operator"} {
			who := rpctest.Principal("default", subject)
			if subject == "dev" {
				who.Groups = []string{"developers"}
			}
			explained, err := explains.ExplainCall(t.Context(), &policyv1.ExplainCallRequest{Call: call(tool), Subject: who})
			if err != nil {
				t.Fatal(err)
			}
			rec := recorded(tool, subject, 0, 0)
			rec.Decision = explained.GetDecision()
			if rec.Decision.GetCode() == commonv1.Code_CODE_TOOL_UNKNOWN && rec.Decision.GetRule() == nil {
				t.Fatal("a tool is unknown")
			}
			resp := replayStep(t, stream, recordsOf(rec))
			if got := replayLines(resp); len(resp.GetFlips())+len(resp.GetUnknown()) > 0 {
				t.Fatalf("%s by %s: explained as %v, and replayed as\n%s\nby\n%s", tool, subject, explained.GetDecision(), got, text)
			}
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}
