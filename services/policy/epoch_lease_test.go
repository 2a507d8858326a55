package policy_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

type leaseClient struct {
	t      *testing.T
	stream policyv1.PolicyService_LeaseRevisionClient
	number uint64
}

func (l *catalogFixture) openLeases() *leaseClient {
	l.t.Helper()
	ctx, cancel := context.WithCancel(l.t.Context())
	stream, err := l.policy.LeaseRevision(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	t, _ := l.t.(*testing.T)
	t.Cleanup(cancel)
	return &leaseClient{t: t, stream: stream}
}

// request requests a lease. The message also acknowledges an earlier response, whose number is the parameter taken.
func (l *leaseClient) request(taken uint64) {
	l.t.Helper()
	l.number++
	if err := l.stream.Send(&policyv1.LeaseRevisionRequest{Number: l.number, Taken: taken}); err != nil {
		l.t.Fatal(err)
	}
}

func (l *leaseClient) receive() *policyv1.LeaseRevisionResponse {
	l.t.Helper()
	resp, err := l.stream.Recv()
	if err != nil {
		l.t.Fatal(err)
	}
	return resp
}

// quarantine quarantines the server in the background. The returned channel receives the result of the RPC.
func (l *catalogFixture) quarantine() <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := l.operator.SetQuarantine(l.t.Context(), &policyv1.SetQuarantineRequest{Server: "files", Quarantined: true, Reason: "it leaks"})
		done <- err
	}()
	return done
}

func TestLeaseRevision_NamesTheEpochOfDecisions(t *testing.T) {
	t.Parallel()
	lib := newCatalogFixture(t, pinned(t))
	get := definition("get_file", "Gets a file.")
	lib.reportOwnList(get)
	gateway := lib.openLeases()
	gateway.request(0)
	first := gateway.receive()
	if first.GetNumber() != 1 || first.GetRequest() != 1 || first.GetEpoch() == "" || first.GetRevision().GetId() != lib.revision() || first.GetLease().AsDuration() != time.Second {
		t.Fatalf("the first lease: %v", first)
	}
	resp := lib.decideCall(get)
	if resp.GetKeeping().GetEpoch() != first.GetEpoch() || resp.GetKeeping().GetBySession() {
		t.Errorf("a decision may be reused as %v, under the lease %v", resp.GetKeeping(), first)
	}
	gateway.request(first.GetNumber())
	if renewed := gateway.receive(); renewed.GetEpoch() != first.GetEpoch() || renewed.GetNumber() != 2 || renewed.GetRequest() != 2 || renewed.GetLease() == nil {
		t.Errorf("renewed: %v", renewed)
	}
	lib.reportOwnList(get, definition("set_file", "Sets a file.")) // the new definition waits for an operator, so decisions on other tools stay the same
	change := gateway.receive()
	if change.GetEpoch() == first.GetEpoch() || change.GetRequest() != 0 || change.GetLease() != nil {
		t.Errorf("the response after a change is %v", change)
	}
	if late := lib.decideCall(get).GetKeeping().GetEpoch(); late != change.GetEpoch() {
		t.Errorf("a decision is of epoch %q, and the last response had epoch %q", late, change.GetEpoch())
	}
	gateway.request(99)
	_, err := gateway.stream.Recv()
	rpctest.WantStatus(t, err, codes.InvalidArgument, "LEASE_DISORDER")
}

// SetQuarantine returns only after the gateway has acknowledged the response that contains the change.
func TestSetQuarantine_ReturnsWhenTheGatewayHasTakenTheChange(t *testing.T) {
	t.Parallel()
	lib := newCatalogFixture(t, pinned(t))
	lib.reportOwnList(definition("get_file", "Gets a file."))
	time.Sleep(time.Second) // after a start, the service waits for leases of the previous process
	gateway := lib.openLeases()
	gateway.request(0)
	first := gateway.receive()
	done := lib.quarantine()
	change := gateway.receive()
	select {
	case err := <-done:
		t.Fatalf("a change that the gateway has not taken is acknowledged: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	gateway.request(first.GetNumber()) // the gateway has not seen the change yet
	if resp := gateway.receive(); resp.GetEpoch() != change.GetEpoch() || resp.GetLease() == nil {
		t.Fatalf("the next response is %v, after %v", resp, change)
	}
	select {
	case err := <-done:
		t.Fatalf("a change that the gateway has not taken is acknowledged: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	gateway.request(change.GetNumber())
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A gateway stops sending requests. SetQuarantine then waits until the gateway's lease expires. If the deadline of the
// caller of SetQuarantine is earlier, the caller gets an error.
func TestSetQuarantine_WaitsForLeasesWhenTheGatewayIsSilent(t *testing.T) {
	t.Parallel()
	lib := newCatalogFixture(t, pinned(t))
	lib.reportOwnList(definition("get_file", "Gets a file."))
	time.Sleep(time.Second)
	gateway := lib.openLeases()
	begin := time.Now() // before the lease begins
	gateway.request(0)
	gateway.receive()
	if err := gateway.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	hasty, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := lib.operator.SetQuarantine(hasty, &policyv1.SetQuarantineRequest{Server: "files", Quarantined: true, Reason: "it leaks"})
	rpctest.WantStatus(t, err, codes.DeadlineExceeded, "")
	if err := <-lib.quarantine(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < time.Second {
		t.Errorf("the change was acknowledged after %v, but the lease lasts a second", took)
	}
}

// The service has just started. SetQuarantine waits for as long as a lease from the previous process may still be
// valid.
func TestSetQuarantine_WaitsForLeasesOfThePreviousProcessAfterAStart(t *testing.T) {
	t.Parallel()
	opts := pinned(t)
	begin := time.Now()
	lib := newCatalogFixture(t, opts)
	lib.reportOwnList(definition("get_file", "Gets a file."))
	if err := <-lib.quarantine(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < time.Second {
		t.Errorf("the first change is acknowledged %v after the start", took)
	}
}

func TestDecideCall_ReturnsKeepingForCacheableDecisions(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	gateway := policyv1.NewPolicyServiceClient(s.Gateway())
	for tool, want := range map[string]*policyv1.Keeping{
		"read": {}, "remove": {}, "other": {}, "export": {BySession: true}, "pay": nil, "secret": nil, "not\na name": {},
	} {
		ctx := asAna(t.Context())
		resp, err := gateway.DecideCall(ctx, &policyv1.DecideCallRequest{Call: call(tool)})
		if err != nil {
			t.Fatal(err)
		}
		got := proto.CloneOf(resp.GetKeeping())
		if got != nil {
			if got.GetEpoch() == "" {
				t.Errorf("%s has no epoch", tool)
			}
			got.Epoch = ""
		}
		if !proto.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%s: Keeping is %v, want %v", tool, got, want)
		}
		signed, err := gateway.DecideCall(ctx, &policyv1.DecideCallRequest{Call: call(tool), Attest: &policyv1.Attest{ServerIdentity: "x"}})
		if err != nil || signed.GetKeeping() != nil {
			t.Errorf("%s with a signature: %v, %v", tool, signed.GetKeeping(), err)
		}
	}
}
