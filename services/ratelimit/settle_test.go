package ratelimit_test

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/ratelimit"
)

const (
	sent      = ratelimitv1.Settlement_SETTLEMENT_SENT
	neverSent = ratelimitv1.Settlement_SETTLEMENT_NEVER_SENT
)

func TestSettleLease(t *testing.T) {
	t.Parallel()
	l := serveDefault(t)
	first := l.inTenant(t, "default").granted(request("k", limit("a", "10"), limit("b", "10")))
	second := l.inTenant(t, "default").granted(request("k2", limit("a", "10"), limit("b", "10")))
	if !l.settle(t, first.GetId(), sent) || l.settle(t, first.GetId(), sent) || l.settle(t, first.GetId(), neverSent) {
		t.Error("a reservation must be settled once, and a repeat must report that")
	}
	l.wantLeft(t, limit("a", "10"), "8")
	if !l.settle(t, second.GetId(), neverSent) || l.settle(t, second.GetId(), neverSent) {
		t.Error("a reservation must be settled once, and a repeat must report that")
	}
	l.wantLeft(t, limit("a", "10"), "9")
	l.wantLeft(t, limit("b", "10"), "9")
	if l.settle(t, "never-was", sent) {
		t.Error("a reservation that never existed is settled")
	}
	third := l.inTenant(t, "default").granted(request("k", limit("a", "10"), limit("b", "10")))
	if third.GetId() == first.GetId() {
		t.Error("a key whose reservation has ended makes no new reservation")
	}
}

func TestSettleLease_InvalidRequestsAreRefused(t *testing.T) {
	t.Parallel()
	l := serveDefault(t)
	reservation := l.inTenant(t, "default").granted(request("k", limit("a", "10"))).GetId()
	_, err := l.SettleLease(t.Context(), settlement(reservation, sent, &ratelimitv1.Amount{Bucket: "a", Amount: "1"}))
	rpctest.WantStatus(t, err, codes.Unimplemented, "LIMIT_KIND_UNSUPPORTED")
	_, err = l.SettleLease(t.Context(), settlement(reservation, ratelimitv1.Settlement_SETTLEMENT_UNSPECIFIED))
	rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	_, err = l.SettleLease(t.Context(), settlement("", sent))
	rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	_, err = l.SettleLease(t.Context(), &ratelimitv1.SettleLeaseRequest{Settlement: sent})
	rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	_, err = l.SettleLease(t.Context(), &ratelimitv1.SettleLeaseRequest{
		Target: &ratelimitv1.SettleLeaseRequest_Key{Key: &ratelimitv1.LeaseKey{Tenant: "default", IdempotencyKey: "k"}}, Settlement: sent,
	})
	rpctest.WantStatus(t, err, codes.Unimplemented, "KEY_UNSUPPORTED")
	if !l.settle(t, reservation, sent) {
		t.Error("what was refused has ended the reservation")
	}
}

func TestRenewLease_NeverShortensAReservation(t *testing.T) {
	t.Parallel()
	l := serveDefault(t)
	reservation := l.inTenant(t, "default").granted(request("k", limit("a", "10")))
	renew := func(id string, d *durationpb.Duration) (time.Time, error) {
		resp, err := l.RenewLease(t.Context(), &ratelimitv1.RenewLeaseRequest{LeaseId: id, Lease: d})
		return resp.GetExpires().AsTime(), err
	}
	expires, err := renew(reservation.GetId(), durationpb.New(time.Hour))
	if life := expires.Sub(reservation.GetGranted().AsTime()); err != nil || life < time.Hour || life > time.Hour+time.Minute {
		t.Errorf("the lifetime is %v, %v; want an hour", life, err)
	}
	if shorter, err := renew(reservation.GetId(), durationpb.New(time.Second)); err != nil || !shorter.Equal(expires) {
		t.Errorf("renewed for a second it ends at %v, %v; want %v as before", shorter, err, expires)
	}
	if same, err := renew(reservation.GetId(), nil); err != nil || !same.Equal(expires) {
		t.Errorf("renewed for the usual time it ends at %v, %v; want %v as before", same, err, expires)
	}
	_, err = renew("never-was", nil)
	rpctest.WantStatus(t, err, codes.NotFound, "NOT_FOUND")
	_, err = renew(reservation.GetId(), durationpb.New(2*time.Hour))
	rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	l.settle(t, reservation.GetId(), sent)
	_, err = renew(reservation.GetId(), nil)
	rpctest.WantStatus(t, err, codes.NotFound, "NOT_FOUND")
}

func TestPeekBuckets_TakesNoUnits(t *testing.T) {
	t.Parallel()
	l := serveDefault(t)
	l.inTenant(t, "default").granted(request("k", limit("a", "10")))
	for range 20 {
		l.wantLeft(t, limit("a", "10"), "9")
	}
	viewer := l.person(t, "viewer")
	if got := viewer.remaining(limit("a", "10")); got != "9" {
		t.Errorf("a viewer sees %s left, want 9", got)
	}
	if got := viewer.remaining(limit("untouched", "10")); got != "10" {
		t.Errorf("of an untouched bucket a viewer sees %s left, want 10", got)
	}
	resp, err := viewer.PeekBuckets(t.Context(), &ratelimitv1.PeekBucketsRequest{Limits: []*ratelimitv1.Limit{limit("b", "5"), limit("a", "10"), limit("b", "5")}})
	if err != nil || len(resp.GetRemaining()) != 3 || resp.GetRemaining()[1].GetBucket() != "a" || resp.GetRemaining()[1].GetRemaining() != "9" {
		t.Errorf("three buckets, one of them twice: %v, %v", resp, err)
	}
	_, err = viewer.PeekBuckets(t.Context(), new(ratelimitv1.PeekBucketsRequest))
	rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
}

func TestResetBucket_EmptiesTheBucketAndLogs(t *testing.T) {
	t.Parallel()
	log := new(bytes.Buffer)
	l := serve(t, ratelimit.DefaultConfig(), log)
	reservation := l.inTenant(t, "default").granted(request("k", limit("a", "1")))
	l.inTenant(t, "default").granted(request("k2", limit("b", "1")))
	operator := l.person(t, "operator")
	if _, err := operator.ResetBucket(t.Context(), &ratelimitv1.ResetBucketRequest{Bucket: "a", Comment: "a slip\nof the pen"}); err != nil {
		t.Fatal(err)
	}
	l.wantLeft(t, limit("a", "1"), "1")
	l.wantLeft(t, limit("b", "1"), "0")
	if got := log.String(); strings.Count(got, "\n") != 1 {
		t.Errorf("the log is\n%s", got)
	}
	for _, want := range []string{"bucket=a", "by=operator", "tenant=default", `comment="a slip\nof the pen"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not contain %q:\n%s", want, log)
		}
	}
	log.Reset()
	for _, bucket := range []string{"a", "never-was"} {
		_, err := operator.ResetBucket(t.Context(), &ratelimitv1.ResetBucketRequest{Bucket: bucket})
		rpctest.WantStatus(t, err, codes.NotFound, "NOT_FOUND")
	}
	if log.Len() > 0 {
		t.Errorf("the log contains a reset that failed:\n%s", log)
	}
	// Units that were taken before the reset are not returned after the reset.
	l.inTenant(t, "default").granted(request("k3", limit("a", "1")))
	l.settle(t, reservation.GetId(), neverSent)
	l.wantLeft(t, limit("a", "1"), "0")
}

func TestBuckets_OperatorsReachOnlyTheirTenant(t *testing.T) {
	t.Parallel()
	log := new(bytes.Buffer)
	l := serve(t, ratelimit.DefaultConfig(), log)
	l.inTenant(t, "default").granted(request("k", limit("a", "3")))
	acme := l.person(t, "acme-operator")
	if got := acme.remaining(limit("a", "3")); got != "3" {
		t.Errorf("an operator of another tenant sees %s left, want an untouched bucket", got)
	}
	_, err := acme.ResetBucket(t.Context(), &ratelimitv1.ResetBucketRequest{Bucket: "a"})
	rpctest.WantStatus(t, err, codes.NotFound, "NOT_FOUND")
	for _, guess := range []string{"default/a", "7:defaulta", "/a"} {
		_, err := acme.ResetBucket(t.Context(), &ratelimitv1.ResetBucketRequest{Bucket: guess})
		rpctest.WantStatus(t, err, codes.NotFound, "NOT_FOUND")
	}
	l.wantLeft(t, limit("a", "3"), "2")
	l.inTenant(t, "acme").granted(request("k", limit("a", "3")))
	if _, err := acme.ResetBucket(t.Context(), &ratelimitv1.ResetBucketRequest{Bucket: "a"}); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "tenant=acme") {
		t.Errorf("the log does not contain the tenant:\n%s", log)
	}
	l.wantLeft(t, limit("a", "3"), "2")
}

func TestCallers_AreEnforced(t *testing.T) {
	t.Parallel()
	serveDefault(t).CheckCallers(t, "sluice.ratelimit.v1",
		"sluice.ratelimit.v1.RateLimitService.ReserveLimits",
		"sluice.ratelimit.v1.RateLimitService.RenewLease",
		"sluice.ratelimit.v1.RateLimitService.SettleLease",
		"sluice.ratelimit.v1.RateLimitService.PeekBuckets",
		"sluice.ratelimit.v1.RateLimitService.ResetBucket",
	)
}

func TestRatelimitRole_Serves(t *testing.T) {
	t.Parallel()
	serveDefault(t).CheckHealth(t, "ratelimit")
}

func TestNew_FailsForInvalidConfigurations(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	for name, c := range map[string]struct {
		cfg  ratelimit.Config
		deps ratelimit.Deps
	}{
		"no log":          {ratelimit.DefaultConfig(), ratelimit.Deps{}},
		"no buckets":      {ratelimit.Config{MaxReservations: 1}, ratelimit.Deps{Log: log}},
		"no reservations": {ratelimit.Config{MaxBuckets: 1}, ratelimit.Deps{Log: log}},
	} {
		if _, err := ratelimit.New(c.cfg, c.deps); err == nil {
			t.Errorf("%s: a service was made", name)
		}
	}
}

// In a synctest bubble, time passes only if the test sleeps.
func TestReserveLimits_RetryAfterIsExact(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := build(t, ratelimit.DefaultConfig(), io.Discard)
		ctx := authn.WithCaller(t.Context(), &authn.Caller{Role: authv1.Role_ROLE_GATEWAY, Principal: rpctest.Principal("default", "ana")})
		for _, key := range []string{"1", "2", "3"} {
			if resp, err := svc.ReserveLimits(ctx, request(key, limit("a", "3"))); err != nil || resp.GetLease() == nil {
				t.Fatal(resp, err)
			}
			time.Sleep(time.Second)
		}
		ask := func() *ratelimitv1.ReserveLimitsResponse {
			resp, err := svc.ReserveLimits(ctx, request("4", limit("a", "3")))
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		wait := ask().GetRefusal().GetRetryAfter().AsDuration()
		if want := 57*time.Second + time.Millisecond; wait != want {
			t.Fatalf("the retry time is %v, want %v", wait, want)
		}
		time.Sleep(wait - 2*time.Millisecond)
		if got := ask().GetRefusal().GetRetryAfter().AsDuration(); got <= 0 || got > 2*time.Millisecond {
			t.Errorf("2 ms before the retry time, the refusal has %v", got)
		}
		time.Sleep(2 * time.Millisecond)
		if got := ask(); got.GetLease() == nil {
			t.Errorf("after the retry time the response is %v", got)
		}
	})
}

func TestReserveLimits_ReservationExpiresWhenNotSettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		svc := build(t, ratelimit.DefaultConfig(), io.Discard)
		ctx := authn.WithCaller(t.Context(), &authn.Caller{Role: authv1.Role_ROLE_GATEWAY, Principal: rpctest.Principal("default", "ana")})
		day := limit("a", "10")
		day.Window = durationpb.New(24 * time.Hour)
		reservation := func() string {
			resp, err := svc.ReserveLimits(ctx, request("k", day))
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetLease().GetId()
		}
		first := reservation()
		time.Sleep(4 * time.Minute)
		if _, err := svc.RenewLease(ctx, &ratelimitv1.RenewLeaseRequest{LeaseId: first}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5*time.Minute - 1)
		if reservation() != first {
			t.Error("a reservation that was renewed has ended early")
		}
		time.Sleep(time.Nanosecond)
		if reservation() == first {
			t.Error("a reservation exists longer than its renewed lifetime")
		}
		resp, err := svc.PeekBuckets(ctx, &ratelimitv1.PeekBucketsRequest{Limits: []*ratelimitv1.Limit{day}})
		if err != nil || resp.GetRemaining()[0].GetRemaining() != "8" {
			t.Errorf("left is %v, %v; what an ended reservation took is spent", resp, err)
		}
	})
}
