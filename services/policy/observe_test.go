package policy_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/policy"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// observedDocument is a document with a rule that is in observe mode for the first minute of a synctest bubble.
const observedDocument = "version: 1\nname: p\ndefault: allow\ntools: {read: {action: deny, reason: not now, mode: observe, until: 2000-01-01T00:01:00Z}}\n"

// bubbleStart is the time at which a synctest bubble starts.
var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func decideRead(t *testing.T, svc *policy.Service) *policyv1.DecideCallResponse {
	t.Helper()
	ctx := authn.WithCaller(t.Context(), &authn.Caller{Role: authv1.Role_ROLE_GATEWAY, Principal: ana()})
	resp, err := svc.DecideCall(ctx, &policyv1.DecideCallRequest{Call: call("read")})
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// wantObserved checks that a call is allowed, and that the decision says that the rule in observe mode would deny it.
func wantObserved(t *testing.T, d *policyv1.Decision) {
	t.Helper()
	want := &policyv1.Observation{
		Effect: denied, Code: commonv1.Code_CODE_DENIED_BY_RULE, Message: "not now", Rule: &policyv1.RuleRef{Document: "p", Rule: "tools.read"},
	}
	if d.GetEffect() != allowed || !proto.Equal(d.GetObserved(), want) {
		t.Fatalf("the decision is %v, want an allowed call that would be denied", d)
	}
}

// A rule is in observe mode until a certain time. At that time, the rule is enforced under a new revision and a new
// epoch, even if there is no request.
func TestRun_EnforcesAnObservedRuleOnTime(t *testing.T) {
	t.Parallel()
	runReload(t, oneDocument(observedDocument), func(r *reloadFixture) {
		time.Sleep(time.Minute - time.Nanosecond)
		synctest.Wait()
		before, revision := decideRead(r.T, r.svc), r.revision().GetRevision()
		wantObserved(r.T, before.GetDecision())
		if parts := revision.GetObserved(); len(parts) != 1 || policy.DescribeObserved(parts[0]) != "rule p/tools.read, until 2000-01-01T00:01:00Z" {
			t.Errorf("observed: %v", parts)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !strings.Contains(r.log.String(), "policies that were observed are enforced now") {
			t.Errorf("the log has no message about the end:\n%s", r.log)
		}
		after, next := decideRead(r.T, r.svc), r.revision().GetRevision()
		if d := after.GetDecision(); d.GetEffect() != denied || d.GetObserved() != nil {
			t.Errorf("the decision is %v, want a denied call without an observation", d)
		}
		if before.GetKeeping().GetEpoch() == after.GetKeeping().GetEpoch() || after.GetKeeping() == nil {
			t.Errorf("the epoch was %v and is %v", before.GetKeeping(), after.GetKeeping())
		}
		if next.GetId() == revision.GetId() || next.GetActivation() <= revision.GetActivation() || len(next.GetObserved()) > 0 {
			t.Errorf("the revision was %v and is %v", revision, next)
		}
	})
}

// No timer of the service runs while a rule is in observe mode, as if the machine were suspended. The first call after
// observe mode has ended is denied.
func TestDecideCall_EnforcesAnObservedRuleWithoutATimer(t *testing.T) {
	t.Parallel()
	dir := folder(t, observedDocument)
	synctest.Test(t, func(t *testing.T) {
		svc, _ := build(t, options{paths: []string{dir}}) // Run is not called
		wantObserved(t, decideRead(t, svc).GetDecision())
		time.Sleep(time.Minute)
		if d := decideRead(t, svc).GetDecision(); d.GetEffect() != denied || d.GetObserved() != nil {
			t.Errorf("the decision is %v, want a denied call without an observation", d)
		}
	})
}

// Two rules are in observe mode until different times. Each rule is enforced at its own time.
func TestRun_EnforcesEachObservedRuleAtItsTime(t *testing.T) {
	t.Parallel()
	const text = "version: 1\nname: p\ndefault: allow\nmode: observe\nuntil: 2000-01-01T00:02:00Z\n" +
		"tools: {read: {action: deny, mode: observe, until: 2000-01-01T00:03:00Z}, drop: {action: deny}}\n"
	runReload(t, oneDocument(text), func(r *reloadFixture) {
		for minute, want := range []struct {
			read, drop policyv1.Effect
			observed   int
		}{{allowed, allowed, 2}, {allowed, allowed, 2}, {allowed, denied, 1}, {denied, denied, 0}} {
			time.Sleep(time.Until(bubbleStart.Add(time.Duration(minute) * time.Minute)))
			synctest.Wait()
			observed := len(r.revision().GetRevision().GetObserved())
			if read, drop := r.effect("read"), r.effect("drop"); read != want.read || drop != want.drop || observed != want.observed {
				t.Errorf("minute %d: read %v, drop %v, %d parts are observed, want %v", minute, read, drop, observed, want)
			}
		}
	})
}

// A leaseStream is the server's side of the stream that a gateway receives leases on. It is used in a synctest bubble.
type leaseStream struct {
	*watchStream[policyv1.LeaseRevisionResponse]

	requests chan *policyv1.LeaseRevisionRequest
}

// Recv implements grpc.BidiStreamingServer.
func (s leaseStream) Recv() (*policyv1.LeaseRevisionRequest, error) {
	if req, ok := <-s.requests; ok {
		return req, nil
	}
	return nil, io.EOF
}

// A lease expires no later than observe mode ends, so that no gateway uses a cached decision after that time.
func TestLeaseRevision_LeaseEndsWithTheObservation(t *testing.T) {
	t.Parallel()
	dir := folder(t, observedDocument)
	synctest.Test(t, func(t *testing.T) {
		svc, _ := build(t, options{paths: []string{dir}})
		ctx := authn.WithCaller(t.Context(), &authn.Caller{Role: authv1.Role_ROLE_GATEWAY})
		stream := leaseStream{newWatchStream[policyv1.LeaseRevisionResponse](ctx), make(chan *policyv1.LeaseRevisionRequest)}
		done := make(chan error)
		go func() { done <- svc.LeaseRevision(stream) }()
		for number, want := range []time.Duration{time.Second, 300 * time.Millisecond, 0} {
			time.Sleep(time.Until(bubbleStart.Add(time.Minute - want)))
			stream.requests <- &policyv1.LeaseRevisionRequest{Number: uint64(number + 1), Taken: uint64(number)}
			synctest.Wait()
			sent := stream.messages()
			if got := sent[len(sent)-1].message.GetLease().AsDuration(); got != want {
				t.Errorf("the lease at %v before the end is %v", want, got)
			}
		}
		close(stream.requests)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// The configuration puts a server in observe mode until a certain time. At that time, the rules for the server are
// enforced.
func TestRun_EnforcesAnObservedServerOnTime(t *testing.T) {
	t.Parallel()
	dir := folder(t, "version: 1\nname: p\ntools: {read: {rate_limit: {max: 1, window: 60}}}\n")
	synctest.Test(t, func(t *testing.T) {
		log := new(bytes.Buffer)
		svc, _ := build(t, options{paths: []string{dir}, log: log, observe: engine.Observe{Servers: map[string]time.Time{"demo": bubbleStart.Add(time.Hour)}}})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			if err := svc.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		}()
		time.Sleep(time.Minute)
		d := decideRead(t, svc).GetDecision()
		if d.GetEffect() != allowed || len(d.GetLimits()) != 0 || len(d.GetObserved().GetLimits()) != 2 {
			t.Errorf("the decision of the observed server is %v", d)
		}
		if parts, count := svc.Observed(); len(parts) != 1 || count != 1 || policy.DescribeObserved(parts[0]) != "server demo, until 2000-01-01T01:00:00Z" {
			t.Errorf("observed: %v", parts)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if d := decideRead(t, svc).GetDecision(); d.GetEffect() != allowed || len(d.GetLimits()) != 2 || d.GetObserved() != nil {
			t.Errorf("the decision after the end is %v", d)
		}
	})
}

// A document has more rules in observe mode than a message can contain. GetRevision returns only the first of them.
func TestGetRevision_ContainsTheFirstObservedRules(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("version: 1\nname: p\nrules:\n")
	for i := range 150 {
		fmt.Fprintf(&text, "  - {name: r%d, action: deny, mode: observe, until: 2000-01-01T00:01:00Z}\n", i)
	}
	runReload(t, oneDocument(text.String()), func(r *reloadFixture) {
		if got := r.revision().GetRevision(); len(got.GetObserved()) != 100 || got.GetObservedCount() != 150 {
			r.Errorf("%d parts of %d", len(got.GetObserved()), got.GetObservedCount())
		}
	})
}
