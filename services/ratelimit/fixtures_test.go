package ratelimit_test

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/ratelimit"
)

// build returns a service without a server.
func build(t *testing.T, cfg ratelimit.Config, log io.Writer) *ratelimit.Service {
	t.Helper()
	svc, err := ratelimit.New(cfg, ratelimit.Deps{Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// A testServer is a running service, together with a client that calls the service as a gateway does.
type testServer struct {
	ratelimitv1.RateLimitServiceClient
	*rpctest.Server
}

// serve runs a service. It accepts tokens of the tenant "default" and the token of an operator of the tenant "acme".
func serve(t *testing.T, cfg ratelimit.Config, log io.Writer) *testServer {
	t.Helper()
	tokens, err := authn.NewTokens(append(rpctest.Records(),
		rpctest.Record("acme-operator", "acme", authv1.TokenRole_TOKEN_ROLE_OPERATOR)))
	if err != nil {
		t.Fatal(err)
	}
	s := rpctest.Serve(t, authv1.Role_ROLE_RATELIMIT, build(t, cfg, log), rpctest.Options{Tokens: tokens})
	return &testServer{RateLimitServiceClient: ratelimitv1.NewRateLimitServiceClient(s.Gateway()), Server: s}
}

func serveDefault(t *testing.T) *testServer {
	t.Helper()
	return serve(t, ratelimit.DefaultConfig(), io.Discard)
}

// A caller is a client of the service, and the context for the client's calls.
type caller struct {
	ratelimitv1.RateLimitServiceClient
	t   *testing.T
	ctx context.Context
}

func (l *testServer) person(t *testing.T, token string) *caller {
	t.Helper()
	return &caller{RateLimitServiceClient: ratelimitv1.NewRateLimitServiceClient(l.Person(t, token)), t: t, ctx: t.Context()}
}

// inTenant returns a client that calls the service as a gateway does, on behalf of a principal of the given tenant.
func (l *testServer) inTenant(t *testing.T, tenant string) *caller {
	t.Helper()
	return &caller{RateLimitServiceClient: l.RateLimitServiceClient, t: t, ctx: inTenant(t, tenant)}
}

// inTenant returns the context for a call that a gateway makes on behalf of a principal of the given tenant.
func inTenant(t *testing.T, tenant string) context.Context {
	t.Helper()
	return authn.OnBehalfOf(t.Context(), rpctest.Principal(tenant, "ana"))
}

// limit returns a limit for the given bucket. The parameter most is the maximum number of units per minute.
func limit(bucket, most string) *ratelimitv1.Limit {
	return &ratelimitv1.Limit{
		Bucket: bucket, Kind: ratelimitv1.LimitKind_LIMIT_KIND_SLIDING_WINDOW, Max: most, Window: durationpb.New(time.Minute), Cost: "1",
	}
}

func request(key string, limits ...*ratelimitv1.Limit) *ratelimitv1.ReserveLimitsRequest {
	return &ratelimitv1.ReserveLimitsRequest{IdempotencyKey: key, Limits: limits}
}

// granted reserves units of limits, and fails the test unless the service grants them.
func (a *caller) granted(req *ratelimitv1.ReserveLimitsRequest) *ratelimitv1.Lease {
	a.t.Helper()
	resp, err := a.ReserveLimits(a.ctx, req)
	if err != nil || resp.GetLease().GetId() == "" || resp.GetRefusal() != nil {
		a.t.Fatalf("reserve %v: got %v, %v, want a reservation", req, resp, err)
	}
	return resp.GetLease()
}

// refused tries to reserve units of limits, and fails the test unless the service refuses the request.
func (a *caller) refused(req *ratelimitv1.ReserveLimitsRequest) *ratelimitv1.Refusal {
	a.t.Helper()
	resp, err := a.ReserveLimits(a.ctx, req)
	if err != nil || resp.GetRefusal() == nil || resp.GetLease() != nil {
		a.t.Fatalf("reserve %v: got %v, %v, want a refusal", req, resp, err)
	}
	return resp.GetRefusal()
}

// remaining returns the number of units that remain in the limit's bucket.
func (a *caller) remaining(in *ratelimitv1.Limit) string {
	a.t.Helper()
	resp, err := a.PeekBuckets(a.ctx, &ratelimitv1.PeekBucketsRequest{Limits: []*ratelimitv1.Limit{in}})
	if err != nil {
		a.t.Fatal(err)
	}
	if got := resp.GetRemaining(); len(got) != 1 || got[0].GetBucket() != in.GetBucket() {
		a.t.Fatalf("peek into %s: got %v", in.GetBucket(), got)
	}
	return resp.GetRemaining()[0].GetRemaining()
}

// settlement returns a request to settle a reservation.
func settlement(reservation string, outcome ratelimitv1.Settlement, amounts ...*ratelimitv1.Amount) *ratelimitv1.SettleLeaseRequest {
	return &ratelimitv1.SettleLeaseRequest{Target: &ratelimitv1.SettleLeaseRequest_LeaseId{LeaseId: reservation}, Settlement: outcome, Amounts: amounts}
}

// settle settles a reservation and reports whether this call ended the reservation. If so, settle also checks the
// outcome in the response.
func (l *testServer) settle(t *testing.T, reservation string, outcome ratelimitv1.Settlement) bool {
	t.Helper()
	resp, err := l.SettleLease(t.Context(), settlement(reservation, outcome))
	if err != nil {
		t.Fatal(err)
	}
	want := ratelimitv1.LeaseEnd_LEASE_END_UNSPECIFIED
	if resp.GetSettled() {
		want = map[ratelimitv1.Settlement]ratelimitv1.LeaseEnd{
			sent: ratelimitv1.LeaseEnd_LEASE_END_SENT, neverSent: ratelimitv1.LeaseEnd_LEASE_END_NEVER_SENT,
		}[outcome]
	}
	if resp.GetEnded() != want {
		t.Errorf("the reservation ended %v, want %v", resp.GetEnded(), want)
	}
	return resp.GetSettled()
}

// wantLeft checks the number of units that remain in the limit's bucket of the tenant "default".
func (l *testServer) wantLeft(t *testing.T, in *ratelimitv1.Limit, want string) {
	t.Helper()
	if got := l.inTenant(t, "default").remaining(in); got != want {
		t.Errorf("in %s %s is left, want %s", in.GetBucket(), got, want)
	}
}
