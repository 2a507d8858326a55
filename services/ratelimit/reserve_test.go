package ratelimit_test

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/ratelimit"
)

func remaining(pairs ...string) []*ratelimitv1.Remaining {
	var out []*ratelimitv1.Remaining
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, &ratelimitv1.Remaining{Bucket: pairs[i], Remaining: pairs[i+1]})
	}
	return out
}

func TestReserveLimits_GrantsAReservation(t *testing.T) {
	t.Parallel()
	l := serveDefault(t)
	before := time.Now()
	reservation := l.inTenant(t, "default").granted(request("k", limit("a", "10"), limit("b", "3"), limit("c", "9223372036854775807")))
	if diff := cmp.Diff(remaining("a", "9", "b", "2", "c", "9223372036854775806"), reservation.GetRemaining(), protocmp.Transform()); diff != "" {
		t.Errorf("remaining (-want +got):\n%s", diff)
	}
	if reservation.GetTightest() != 1 {
		t.Errorf("the tightest is limit %d, want 1", reservation.GetTightest())
	}
	at := reservation.GetGranted().AsTime()
	if at.Before(before.Add(-time.Millisecond)) || at.After(time.Now().Add(time.Millisecond)) || len(reservation.GetId()) > 128 {
		t.Errorf("the reservation is %v", reservation)
	}
	if life := reservation.GetExpires().AsTime().Sub(at); life != 5*time.Minute {
		t.Errorf("the lifetime is %v, want 5 min", life)
	}
	req := request("k2", limit("a", "10"))
	req.Lease = durationpb.New(time.Hour)
	reservation = l.inTenant(t, "default").granted(req)
	if life := reservation.GetExpires().AsTime().Sub(reservation.GetGranted().AsTime()); life != time.Hour {
		t.Errorf("the lifetime is %v, want the requested hour", life)
	}
}

func TestReserveLimits_TakesNothingWhenOneLimitIsFull(t *testing.T) {
	t.Parallel()
	l := serveDefault(t)
	l.inTenant(t, "default").granted(request("first", limit("b", "1")))
	refusal := l.inTenant(t, "default").refused(request("second", limit("a", "10"), limit("b", "1"), limit("c", "10")))
	if refusal.GetCode() != commonv1.Code_CODE_RATE_LIMITED || refusal.GetLimit() != 1 || refusal.GetNever() {
		t.Errorf("the refusal is %v, want that of limit 1", refusal)
	}
	if diff := cmp.Diff(remaining("a", "10", "b", "0", "c", "10"), refusal.GetRemaining(), protocmp.Transform()); diff != "" {
		t.Errorf("remaining (-want +got):\n%s", diff)
	}
	wait := refusal.GetRetryAfter().AsDuration()
	if refusal.GetRetryAfter() == nil || wait <= 0 || wait > time.Minute+time.Millisecond || wait%time.Millisecond != 0 {
		t.Errorf("the retry time is %v", refusal.GetRetryAfter())
	}
	l.wantLeft(t, limit("a", "10"), "10")
	// The refused request is not stored, so its key can be used for other limits.
	l.inTenant(t, "default").granted(request("second", limit("a", "10")))
}

func TestReserveLimits_ReportsNeverWhenTheCostExceedsTheMax(t *testing.T) {
	t.Parallel()
	costly := limit("b", "2")
	costly.Cost = "3"
	for name, limits := range map[string][]*ratelimitv1.Limit{
		"nothing fits at all":             {limit("a", "10"), limit("b", "0")},
		"the cost is more than fits":      {limit("a", "10"), costly},
		"another one could be waited for": {limit("full", "1"), costly},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := serveDefault(t)
			l.inTenant(t, "default").granted(request("filler", limit("full", "1")))
			refusal := l.inTenant(t, "default").refused(request("k", limits...))
			if refusal.GetRetryAfter() != nil || !refusal.GetNever() || refusal.GetLimit() != 1 {
				t.Errorf("the refusal is %v, want never for limit 1", refusal)
			}
		})
	}
}

func TestReserveLimits_SupportsOnlySlidingWindows(t *testing.T) {
	t.Parallel()
	l := serveDefault(t)
	for number, name := range ratelimitv1.LimitKind_name {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kind := limit("kind", "10")
			kind.Kind = ratelimitv1.LimitKind(number)
			code, reason := codes.Unimplemented, "LIMIT_KIND_UNSUPPORTED"
			switch kind.GetKind() {
			case ratelimitv1.LimitKind_LIMIT_KIND_SLIDING_WINDOW:
				return
			case ratelimitv1.LimitKind_LIMIT_KIND_UNSPECIFIED:
				code, reason = codes.InvalidArgument, "INVALID_REQUEST"
			}
			_, err := l.ReserveLimits(inTenant(t, "default"), request("k", limit("other", "10"), kind))
			rpctest.WantStatus(t, err, code, reason)
			_, err = l.PeekBuckets(inTenant(t, "default"), &ratelimitv1.PeekBucketsRequest{Limits: []*ratelimitv1.Limit{kind}})
			rpctest.WantStatus(t, err, code, reason)
			l.wantLeft(t, limit("other", "10"), "10")
		})
	}
}

func TestReserveLimits_InvalidRequestsAreRefused(t *testing.T) {
	t.Parallel()
	l := serveDefault(t)
	const contract, limiter = "INVALID_REQUEST", "LIMIT_INVALID"
	tests := []struct {
		name   string
		change func(*ratelimitv1.ReserveLimitsRequest)
		reason string
	}{
		{"a max with a fraction", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Max = "1.5" }, limiter},
		{"a max that is too large", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Max = "9223372036854775808" }, limiter},
		{"a max below nothing", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Max = "-1" }, contract},
		{"no max", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Max = "" }, contract},
		{"a max in hexadecimal", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Max = "0x10" }, contract},
		{"a cost of nothing", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Cost = "0" }, limiter},
		{"a cost with a fraction", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Cost = "0.5" }, limiter},
		{"a cost that is too large", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Cost = strings.Repeat("9", 28) }, limiter},
		{"a cost below nothing", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Cost = "-1" }, contract},
		{"no cost", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Cost = "" }, contract},
		{"no window", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Window = nil }, limiter},
		{"a window of no length", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Window = durationpb.New(0) }, contract},
		{"a window below nothing", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Window = durationpb.New(-1) }, contract},
		{"a window of more than 366 days", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Window = durationpb.New(366*24*time.Hour + 1) }, contract},
		{"no bucket", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Bucket = "" }, contract},
		{"a bucket of too long a name", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Bucket = strings.Repeat("b", 129) }, contract},
		{"one bucket twice", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits[1].Bucket = "a" }, limiter},
		{"no limits", func(r *ratelimitv1.ReserveLimitsRequest) { r.Limits = nil }, contract},
		{"too many limits", func(r *ratelimitv1.ReserveLimitsRequest) {
			for i := range 63 {
				r.Limits = append(r.Limits, limit(fmt.Sprintf("more-%d", i), "1"))
			}
		}, contract},
		{"no key", func(r *ratelimitv1.ReserveLimitsRequest) { r.IdempotencyKey = "" }, contract},
		{"too long a key", func(r *ratelimitv1.ReserveLimitsRequest) { r.IdempotencyKey = strings.Repeat("k", 129) }, contract},
		{"too short a reservation", func(r *ratelimitv1.ReserveLimitsRequest) { r.Lease = durationpb.New(time.Second - 1) }, contract},
		{"too long a reservation", func(r *ratelimitv1.ReserveLimitsRequest) { r.Lease = durationpb.New(time.Hour + 1) }, contract},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			req := request("k", limit("a", "10"), limit("b", "10"))
			c.change(req)
			_, err := l.ReserveLimits(inTenant(t, "default"), req)
			rpctest.WantStatus(t, err, codes.InvalidArgument, c.reason)
			l.wantLeft(t, limit("a", "10"), "10")
		})
	}
}

func TestReserveLimits_IsRefusedWhenTheWindowChanges(t *testing.T) {
	t.Parallel()
	l := serveDefault(t)
	l.inTenant(t, "default").granted(request("k", limit("a", "10")))
	other := limit("a", "10")
	other.Window = durationpb.New(time.Hour)
	_, err := l.ReserveLimits(inTenant(t, "default"), request("k2", other))
	rpctest.WantStatus(t, err, codes.InvalidArgument, "LIMIT_INVALID")
	larger := limit("a", "20") // the max may change, but a change refills nothing
	l.wantLeft(t, larger, "19")
}

func TestReserveLimits_RepeatTakesNothing(t *testing.T) {
	t.Parallel()
	l := serveDefault(t)
	req := request("k", limit("a", "10"), limit("b", "10"))
	first := l.inTenant(t, "default").granted(req)
	repeat := l.inTenant(t, "default").granted(req)
	if diff := cmp.Diff(first, repeat, protocmp.Transform()); diff != "" {
		t.Errorf("a repeat gives a different result (-first +again):\n%s", diff)
	}
	l.wantLeft(t, limit("a", "10"), "9")
	for name, other := range map[string]*ratelimitv1.ReserveLimitsRequest{
		"other limits":         request("k", limit("a", "10"), limit("c", "10")),
		"fewer limits":         request("k", limit("a", "10")),
		"limits of other size": request("k", limit("a", "10"), limit("b", "11")),
		"another order":        request("k", limit("b", "10"), limit("a", "10")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := l.ReserveLimits(inTenant(t, "default"), other)
			rpctest.WantStatus(t, err, codes.InvalidArgument, "IDEMPOTENCY_KEY_REUSED")
		})
	}
}

func TestReserveLimits_KeysAndBucketsBelongToATenant(t *testing.T) {
	t.Parallel()
	l := serveDefault(t)
	req := request("k", limit("a", "1"))
	own := l.inTenant(t, "default").granted(req)
	foreign := l.inTenant(t, "acme").granted(proto.CloneOf(req))
	if own.GetId() == foreign.GetId() {
		t.Error("two tenants share a reservation")
	}
	// Tenant names are separated from keys and bucket names, so the next two requests do not share a bucket.
	l.inTenant(t, "a").granted(request("b/k", limit("c/x", "1")))
	l.inTenant(t, "a-b").granted(request("k", limit("x", "1")))
	l.inTenant(t, "acme").refused(request("k2", limit("a", "1")))
	l.inTenant(t, "default").refused(request("k2", limit("a", "1")))
}

func TestReserveLimits_IsRefusedWhenTheStoreIsFull(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]ratelimit.Config{
		"buckets":      {MaxBuckets: 1, MaxReservations: 100},
		"reservations": {MaxBuckets: 100, MaxReservations: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := serve(t, cfg, io.Discard)
			l.inTenant(t, "default").granted(request("k", limit("a", "10")))
			_, err := l.ReserveLimits(inTenant(t, "default"), request("k2", limit("b", "10")))
			rpctest.WantStatus(t, err, codes.ResourceExhausted, "LIMITER_FULL")
			l.inTenant(t, "default").granted(request("k", limit("a", "10")))
		})
	}
}

// Case R3. TestReserveLimits_OnePrincipalCannotFillTheStore checks that a principal that uses many bucket names uses up
// only its own quota. Other principals of the tenant, and principals with the same name in other tenants, are not
// refused.
func TestReserveLimits_OnePrincipalCannotFillTheStore(t *testing.T) {
	t.Parallel()
	l := serve(t, ratelimit.Config{MaxBuckets: 100, MaxReservations: 1000}, io.Discard)
	invent := func(tenant, subject string, i int) error {
		name := fmt.Sprint(subject, i)
		_, err := l.ReserveLimits(authn.OnBehalfOf(t.Context(), rpctest.Principal(tenant, subject)), request(name, limit(name, "10")))
		return err
	}
	for i := range 5 {
		if err := invent("default", "eve", i); err != nil {
			t.Fatalf("bucket %d: %v", i, err)
		}
	}
	for i := range 100 {
		rpctest.WantStatus(t, invent("default", "eve", 5+i), codes.ResourceExhausted, "LIMITER_FULL")
	}
	for _, other := range []struct{ tenant, subject string }{{"default", "ana"}, {"acme", "eve"}} {
		if err := invent(other.tenant, other.subject, 0); err != nil {
			t.Errorf("%s of %s: %v", other.subject, other.tenant, err)
		}
	}
}

func TestReserveLimits_ConcurrentCallersGetExactlyTheMax(t *testing.T) {
	t.Parallel()
	l := serveDefault(t)
	var grants atomic.Int64
	var all sync.WaitGroup
	for i := range 400 {
		all.Go(func() {
			resp, err := l.ReserveLimits(inTenant(t, "default"), request(fmt.Sprintf("k%d", i), limit("a", "100"), limit("b", "1000")))
			switch {
			case err != nil:
				t.Error(err)
			case resp.GetLease() != nil:
				grants.Add(1)
			}
		})
	}
	all.Wait()
	if grants.Load() != 100 {
		t.Errorf("%d were granted, want 100", grants.Load())
	}
	l.wantLeft(t, limit("b", "1000"), "900")
}

func TestReserveLimits_NamesTheInstance(t *testing.T) {
	t.Parallel()
	one, other := serveDefault(t), serveDefault(t)
	ask := func(l *testServer, key, most string) string {
		resp, err := l.inTenant(t, "default").ReserveLimits(inTenant(t, "default"), request(key, limit("a", most)))
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetInstance()
	}
	first := ask(one, "k", "1")
	if refused := ask(one, "k2", "1"); first == "" || len(first) > 64 || refused != first {
		t.Errorf("one process names itself %q and, where it refuses, %q", first, refused)
	}
	if second := ask(other, "k", "1"); second == "" || second == first {
		t.Errorf("another process names itself %q, as %q", second, first)
	}
}
