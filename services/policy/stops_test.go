package policy_test

import (
	"context"
	"database/sql"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
	"github.com/sluice-mesh/sluice/services/policy"
)

func TestMain(m *testing.M) { os.Exit(sqlstoretest.Main(m)) }

// stopFixture is a running policy service with operators in two tenants.
type stopFixture struct {
	t *testing.T
	*rpctest.Server

	gateway, operator, acme policyv1.PolicyServiceClient
}

func newStopFixture(t *testing.T, opts options) *stopFixture {
	t.Helper()
	opts.tokens = append(rpctest.Records(), otherTenantTokens()...)
	svc, tokens := build(t, opts)
	s := rpctest.Serve(t, authv1.Role_ROLE_POLICY, svc, rpctest.Options{Tokens: tokens})
	runService(t, svc)
	return &stopFixture{
		t: t, Server: s, gateway: policyv1.NewPolicyServiceClient(s.Gateway()),
		operator: policyv1.NewPolicyServiceClient(s.Person(t, "operator")), acme: policyv1.NewPolicyServiceClient(s.Person(t, "acme-operator")),
	}
}

func runService(t *testing.T, svc *policy.Service) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (f *stopFixture) stop(client policyv1.PolicyServiceClient, selector *policyv1.StopSelector) *policyv1.StopCallsResponse {
	f.t.Helper()
	resp, err := client.StopCalls(f.t.Context(), &policyv1.StopCallsRequest{Selector: selector, Reason: "it loops"})
	if err != nil {
		f.t.Fatal(err)
	}
	return resp
}

func (f *stopFixture) resume(client policyv1.PolicyServiceClient, selector *policyv1.StopSelector) *policyv1.ResumeCallsResponse {
	f.t.Helper()
	resp, err := client.ResumeCalls(f.t.Context(), &policyv1.ResumeCallsRequest{Selector: selector})
	if err != nil {
		f.t.Fatal(err)
	}
	return resp
}

// decision returns the decision on a principal's call to the tool read.
func (f *stopFixture) decision(tenant, subject, agent string) *policyv1.Decision {
	f.t.Helper()
	p := rpctest.Principal(tenant, subject)
	p.Agent = agent
	resp, err := f.gateway.DecideCall(authn.OnBehalfOf(f.t.Context(), p), &policyv1.DecideCallRequest{Call: call("read")})
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.GetDecision()
}

func (f *stopFixture) wantStopped(want bool, tenant, subject, agent string) {
	f.t.Helper()
	d := f.decision(tenant, subject, agent)
	stopped := d.GetEffect() == deny && d.GetCode() == commonv1.Code_CODE_STOPPED && strings.HasPrefix(d.GetMessage(), "it loops. An operator has stopped ")
	if stopped != want || !want && d.GetEffect() != allow {
		f.t.Errorf("%s/%s (%s): %v, want stopped: %t", tenant, subject, agent, d, want)
	}
}

func TestStopCalls_RefusesTheSelectedCallsUntilTheyAreResumed(t *testing.T) {
	t.Parallel()
	f := newStopFixture(t, options{})
	before := f.decision("default", "ana", "coder").GetPolicyRevision()
	selector := &policyv1.StopSelector{Agent: "coder"}
	first := f.stop(f.operator, selector)
	if first.GetAlreadyStopped() || first.GetStop().GetOperator() != "operator" || first.GetStop().GetBegan() == nil || first.GetPolicyRevision() == before {
		t.Errorf("%v", first)
	}
	f.wantStopped(true, "default", "ana", "coder")
	f.wantStopped(true, "acme", "bob", "coder")
	f.wantStopped(false, "default", "ana", "other")
	if d := f.decision("default", "ana", "coder"); d.GetPolicyRevision() != first.GetPolicyRevision() {
		t.Errorf("%v was decided by a revision that differs from that of %v", d, first)
	}
	again := f.stop(f.operator, selector)
	if !again.GetAlreadyStopped() || !proto.Equal(again.GetStop(), first.GetStop()) {
		t.Errorf("the repeated stop: %v", again)
	}
	resumed := f.resume(f.operator, selector)
	if len(resumed.GetResumed()) != 1 || resumed.GetResumed()[0].GetResumedBy() != "operator" || resumed.GetPolicyRevision() != before {
		t.Errorf("%v; the revision before the stop was %s", resumed, before)
	}
	f.wantStopped(false, "default", "ana", "coder")
	if none := f.resume(f.operator, selector).GetResumed(); none != nil {
		t.Errorf("the repeated resume: %v", none)
	}
	ended, err := f.operator.ListStops(t.Context(), &policyv1.ListStopsRequest{Ended: true})
	if err != nil || len(ended.GetStops()) != 1 || !proto.Equal(ended.GetStops()[0], resumed.GetResumed()[0]) {
		t.Errorf("%v: %v", ended, err)
	}
}

func TestStopCalls_ExplanationNamesTheStop(t *testing.T) {
	t.Parallel()
	f := newStopFixture(t, options{})
	f.stop(f.operator, &policyv1.StopSelector{Server: "demo"})
	resp, err := f.operator.ExplainCall(t.Context(), &policyv1.ExplainCallRequest{Call: call("read"), Subject: ana()})
	if err != nil || resp.GetDecision().GetCode() != commonv1.Code_CODE_STOPPED || !strings.HasPrefix(resp.GetWhy(), "An operator has stopped all calls to server demo.") {
		t.Errorf("%v: %v", resp, err)
	}
}

// Operators of a tenant can stop and resume only calls of their own tenant. They can't end the stops of the
// installation's operators.
func TestStopCalls_OperatorsOfATenantAreRestrictedToIt(t *testing.T) {
	t.Parallel()
	f := newStopFixture(t, options{})
	for _, selector := range []*policyv1.StopSelector{{All: true}, {Tenant: "default"}, {Agent: "coder", Tenant: "umbrella"}} {
		_, err := f.acme.StopCalls(t.Context(), &policyv1.StopCallsRequest{Selector: selector, Reason: "x"})
		rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
		_, err = f.acme.ResumeCalls(t.Context(), &policyv1.ResumeCallsRequest{Selector: selector})
		rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
	}
	if got := f.stop(f.acme, &policyv1.StopSelector{Agent: "coder"}).GetStop().GetSelector().GetTenant(); got != "acme" {
		t.Errorf("the tenant of the selector is %q", got)
	}
	f.stop(f.acme, &policyv1.StopSelector{Server: "demo", Tenant: "acme"})
	f.wantStopped(true, "acme", "bob", "other")
	f.wantStopped(false, "default", "ana", "coder")

	f.stop(f.operator, &policyv1.StopSelector{Agent: "coder", Tenant: "acme"})
	f.resume(f.acme, &policyv1.StopSelector{Server: "demo"})
	if own := f.resume(f.acme, &policyv1.StopSelector{Agent: "coder"}).GetResumed(); len(own) != 1 || own[0].GetOperatorTenant() != "acme" {
		t.Errorf("an operator of a tenant has ended %v", own)
	}
	f.wantStopped(true, "acme", "bob", "coder") // by the installation's operator

	f.stop(f.operator, &policyv1.StopSelector{Agent: "x", Tenant: "umbrella"})
	f.stop(f.operator, &policyv1.StopSelector{Agent: "y"})
	list, err := policyv1.NewPolicyServiceClient(f.Person(t, "acme-viewer")).ListStops(t.Context(), new(policyv1.ListStopsRequest))
	if err != nil || len(list.GetStops()) != 2 {
		t.Fatalf("%v: %v", list, err)
	}
	for _, stop := range list.GetStops() {
		if stop.GetOperator() != "" || stop.GetSelector().GetTenant() == "umbrella" || stop.GetReason() == "" {
			t.Errorf("people of another tenant get %v", stop)
		}
	}
	f.stop(f.acme, &policyv1.StopSelector{Agent: "coder"})
	if both := f.resume(f.operator, &policyv1.StopSelector{Agent: "coder", Tenant: "acme"}).GetResumed(); len(both) != 2 {
		t.Errorf("the installation's operator has ended %v", both)
	}
}

func TestStopCalls_InvalidRequestsAreRefused(t *testing.T) {
	t.Parallel()
	f := newStopFixture(t, options{})
	for _, tt := range []struct {
		req    *policyv1.StopCallsRequest
		reason string
	}{
		{&policyv1.StopCallsRequest{Selector: &policyv1.StopSelector{}, Reason: "x"}, "SELECTOR_INVALID"},
		{&policyv1.StopCallsRequest{Selector: &policyv1.StopSelector{All: true, Agent: "a"}, Reason: "x"}, "SELECTOR_INVALID"},
		{&policyv1.StopCallsRequest{Selector: &policyv1.StopSelector{All: true}, Reason: " \n"}, "REASON_MISSING"},
		{&policyv1.StopCallsRequest{Selector: &policyv1.StopSelector{All: true}}, "INVALID_REQUEST"},
		{&policyv1.StopCallsRequest{Selector: &policyv1.StopSelector{All: true}, Reason: strings.Repeat("x", 1025)}, "INVALID_REQUEST"},
		{&policyv1.StopCallsRequest{Selector: &policyv1.StopSelector{Agent: "a\nb"}, Reason: "x"}, "INVALID_REQUEST"},
		{&policyv1.StopCallsRequest{Selector: &policyv1.StopSelector{Server: "a*"}, Reason: "x"}, "INVALID_REQUEST"},
		{&policyv1.StopCallsRequest{Reason: "x"}, "INVALID_REQUEST"},
	} {
		_, err := f.operator.StopCalls(t.Context(), tt.req)
		rpctest.WantStatus(t, err, codes.InvalidArgument, tt.reason)
	}
	f.wantStopped(false, "default", "ana", "coder")
}

// A policy document changes, and later the service restarts. The stops stay in force.
func TestStopCalls_StopsSurviveChangesAndRestarts(t *testing.T) {
	t.Parallel()
	opts := options{paths: []string{folder(t, strings.Replace(document, "pay:", "# pay:", 1))}, data: t.TempDir(), tokens: append(rpctest.Records(), otherTenantTokens()...)}
	svc, tokens := build(t, opts)
	s := rpctest.Serve(t, authv1.Role_ROLE_POLICY, svc, rpctest.Options{Tokens: tokens})
	runService(t, svc)
	f := &stopFixture{t: t, gateway: policyv1.NewPolicyServiceClient(s.Gateway()), operator: policyv1.NewPolicyServiceClient(s.Person(t, "operator"))}
	revision := f.stop(f.operator, &policyv1.StopSelector{Agent: "coder"}).GetPolicyRevision()
	write(t, opts.paths[0], "second.yaml", "version: 1\nname: second\nserver: other\ndefault: allow\n")
	for deadline := time.Now().Add(20 * time.Second); f.decision("default", "ana", "coder").GetPolicyRevision() == revision; {
		if time.Now().After(deadline) {
			t.Fatal("the documents were not read again")
		}
		time.Sleep(10 * time.Millisecond)
	}
	f.wantStopped(true, "default", "ana", "coder")
	if err := svc.Close(); err != nil {
		t.Fatal(err)
	}
	f = newStopFixture(t, opts)
	f.wantStopped(true, "default", "ana", "coder")
	f.resume(f.operator, &policyv1.StopSelector{Agent: "coder"})
	f.wantStopped(false, "default", "ana", "coder")
}

// A gateway acknowledges a stop immediately. StopCalls nevertheless responds only after one second, because until then
// a call can start because of an older decision that was not cached.
func TestStopCalls_RespondsWhenNoOlderDecisionIsValid(t *testing.T) {
	t.Parallel()
	lib := newCatalogFixture(t, pinned(t))
	operator := policyv1.NewPolicyServiceClient(lib.Person(t, "operator"))
	time.Sleep(time.Second) // after a start, the service waits for leases of the previous process
	gateway := lib.openLeases()
	gateway.request(0)
	first := gateway.receive()
	done, begin := make(chan error, 1), time.Now()
	go func() {
		_, err := operator.StopCalls(t.Context(), &policyv1.StopCallsRequest{Selector: &policyv1.StopSelector{All: true}, Reason: "x"})
		done <- err
	}()
	if change := gateway.receive(); change.GetEpoch() == first.GetEpoch() || change.GetRevision().GetId() == first.GetRevision().GetId() {
		t.Errorf("the stop begins no epoch: %v, %v", first, change)
	} else {
		gateway.request(change.GetNumber())
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < time.Second {
		t.Errorf("the stop was acknowledged after %v", took)
	}
}

// Two replicas use one database. When one replica has acknowledged a stop, the stop is also in force at the other
// replica.
func TestStopCalls_IsInForceAtEveryReplicaWhenAcknowledged(t *testing.T) {
	t.Parallel()
	opts := options{source: sqlstoretest.Postgres(t)}
	one, two := newStopFixture(t, opts), newStopFixture(t, opts)
	for range 3 {
		begin := time.Now()
		one.stop(one.operator, &policyv1.StopSelector{Agent: "coder"})
		two.wantStopped(true, "default", "ana", "coder")
		t.Logf("acknowledged after %v", time.Since(begin))
		two.resume(two.operator, &policyv1.StopSelector{Agent: "coder"})
		one.wantStopped(false, "default", "ana", "coder")
	}
}

// The store of a running service can't be written. StopCalls returns an error, and calls are still allowed.
func TestStopCalls_FailsWhenTheStoreCannotBeWritten(t *testing.T) {
	t.Parallel()
	opts := options{data: t.TempDir()}
	f := newStopFixture(t, opts)
	damage(t, opts, "ALTER TABLE stops RENAME TO stops_elsewhere")
	_, err := f.operator.StopCalls(t.Context(), &policyv1.StopCallsRequest{Selector: &policyv1.StopSelector{All: true}, Reason: "x"})
	rpctest.WantStatus(t, err, codes.Unavailable, "CATALOGUE_STORE_AWAY")
	if err == nil || !strings.Contains(err.Error(), "the stop could not be stored") {
		t.Errorf("%v", err)
	}
	_, err = f.operator.ListStops(t.Context(), new(policyv1.ListStopsRequest))
	rpctest.WantStatus(t, err, codes.Unavailable, "CATALOGUE_STORE_AWAY")
	f.wantStopped(false, "default", "ana", "coder")
}

func TestNew_FailsWhenTheStopsCannotBeRead(t *testing.T) {
	t.Parallel()
	opts := options{data: t.TempDir(), paths: []string{folder(t, document)}}
	svc, _ := build(t, opts)
	if err := svc.Close(); err != nil {
		t.Fatal(err)
	}
	damage(t, opts, "ALTER TABLE stops RENAME TO stops_elsewhere")
	_, err := policy.New(t.Context(), policy.Config{
		Paths: opts.paths, SessionCap: 10, People: holdersOf(records()), Decide: time.Minute, Execute: time.Minute, TestsWithin: time.Minute, Source: "sqlite", Data: opts.data,
	}, policy.Deps{Tokens: new(authn.Tokens), Signer: signer(t), Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "read the stops") {
		t.Errorf("a service without its stops starts: %v", err)
	}
}

// damage runs a statement in the SQLite database of a service.
func damage(t *testing.T, opts options, statement string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(opts.data, "*", "catalogue.db"))
	if err != nil || len(files) != 1 {
		files = []string{filepath.Join(opts.data, "catalogue.db")}
	}
	db, err := sql.Open("sqlite", files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }() // the statement reports errors
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}
