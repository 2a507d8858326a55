package attempt_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
)

const noLimiter = commonv1.Code_CODE_LIMITER_UNAVAILABLE

// grants makes the fake rate limit service grant reservations. The nth response names the nth of the given instances.
// All further responses name the last one.
func (l *limiter) grants(instances ...string) {
	next := 0
	l.reserve = func() (*ratelimitv1.ReserveLimitsResponse, error) {
		instance := instances[min(next, len(instances)-1)]
		next++
		return &ratelimitv1.ReserveLimitsResponse{Instance: instance, Result: &ratelimitv1.ReserveLimitsResponse_Lease{Lease: &ratelimitv1.Lease{Id: fmt.Sprint("lease ", next)}}}, nil
	}
}

func limited(limits ...*policyv1.RuleLimit) *policyv1.Decision {
	d := allow()
	d.Limits = limits
	return d
}

func TestReserve_ReservesAllLimitsAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.limiter.grants("one")
	first, second := limitOf(policyv1.SessionKey_SESSION_KEY_RUN), limitOf(policyv1.SessionKey_SESSION_KEY_PRINCIPAL)
	second.Limit.Bucket = "c"
	a := decided(newAttempt(t, callText), limited(first, second))
	got, refused := f.client(t).Reserve(t.Context(), a, "key")
	if refused != nil || got.Lease.GetId() != "lease 1" || a.Lease != nil || !a.IsLimited() {
		t.Fatalf("%+v, refused as %+v", got.Lease, refused)
	}
	want := &ratelimitv1.ReserveLimitsRequest{IdempotencyKey: "key", Limits: []*ratelimitv1.Limit{first.GetLimit(), second.GetLimit()}, Lease: durationpb.New(15 * time.Second)}
	if diff := cmp.Diff([]*ratelimitv1.ReserveLimitsRequest{want}, f.limiter.asks, protocmp.Transform()); diff != "" {
		t.Errorf("requested (-want +got):\n%s", diff)
	}
	if newAttempt(t, callText).IsLimited() {
		t.Error("a call without limits is limited")
	}
}

func TestReserve_RefusesACallThatExceedsALimit(t *testing.T) {
	t.Parallel()
	byPrincipal := limitOf(policyv1.SessionKey_SESSION_KEY_PRINCIPAL)
	for name, tt := range map[string]struct {
		refusal *ratelimitv1.Refusal
		code    commonv1.Code
		rule    string
		says    string
	}{
		"the second limit":   {&ratelimitv1.Refusal{Code: commonv1.Code_CODE_RATE_LIMITED, Limit: 1, RetryAfter: durationpb.New(time.Second)}, commonv1.Code_CODE_RATE_LIMITED, "limits", "at most 10 calls in 1m0s for each caller."},
		"a limit of no call": {&ratelimitv1.Refusal{Code: commonv1.Code_CODE_BUDGET_EXCEEDED, Limit: 7}, commonv1.Code_CODE_BUDGET_EXCEEDED, "", ""},
		"a limit below none": {&ratelimitv1.Refusal{Code: commonv1.Code_CODE_BUDGET_EXCEEDED, Limit: -1}, commonv1.Code_CODE_BUDGET_EXCEEDED, "", ""},
		"no code":            {&ratelimitv1.Refusal{Limit: 0}, noLimiter, "limits", "at most 10 calls in 1m0s for each run."},
		"nothing at all":     {nil, noLimiter, "", ""},
	} {
		f := newFixture(t)
		f.limiter.reserve = func() (*ratelimitv1.ReserveLimitsResponse, error) {
			resp := &ratelimitv1.ReserveLimitsResponse{Instance: "one"}
			if tt.refusal != nil {
				resp.Result = &ratelimitv1.ReserveLimitsResponse_Refusal{Refusal: tt.refusal}
			}
			return resp, nil
		}
		a := decided(newAttempt(t, callText), limited(limitOf(policyv1.SessionKey_SESSION_KEY_RUN), byPrincipal))
		got, refused := f.client(t).Reserve(t.Context(), a, "key")
		if refused == nil || refused.Code != tt.code || refused.Rule.GetRule() != tt.rule || refused.Message != tt.says || refused.PolicyRevision != "rev" ||
			refused.RetryAfter != tt.refusal.GetRetryAfter().AsDuration() || got.Lease != nil {
			t.Errorf("%s: refused as %+v", name, refused)
		}
		if name == "the second limit" && refused.SessionKey != policyv1.SessionKey_SESSION_KEY_PRINCIPAL {
			t.Errorf("the key of the session is %v", refused.SessionKey)
		}
	}
}

func TestReserve_SaysForWhomALimitCounts(t *testing.T) {
	t.Parallel()
	capped := limitOf(policyv1.SessionKey_SESSION_KEY_PRINCIPAL)
	capped.Cap = true
	for limit, want := range map[*policyv1.RuleLimit]string{
		capped: "for all sessions of this caller together",
		limitOf(policyv1.SessionKey_SESSION_KEY_UNSPECIFIED): "here",
		limitOf(policyv1.SessionKey_SESSION_KEY_PRINCIPAL):   "for each caller",
		limitOf(policyv1.SessionKey_SESSION_KEY_RUN):         "for each run",
		limitOf(policyv1.SessionKey_SESSION_KEY_SESSION):     "for each session",
	} {
		f := newFixture(t)
		f.limiter.reserve = func() (*ratelimitv1.ReserveLimitsResponse, error) {
			return &ratelimitv1.ReserveLimitsResponse{Result: &ratelimitv1.ReserveLimitsResponse_Refusal{Refusal: &ratelimitv1.Refusal{Code: commonv1.Code_CODE_RATE_LIMITED}}}, nil
		}
		_, refused := f.client(t).Reserve(t.Context(), decided(newAttempt(t, callText), limited(limit)), "key")
		if refused == nil || refused.Message != "at most 10 calls in 1m0s "+want+"." {
			t.Errorf("%v: %+v", limit.GetSessionKey(), refused)
		}
	}
}

// While the rate limit service is unavailable, a call is allowed if all rules that limit the call say so. If the
// service responds and refuses a call, no rule can allow the call.
func TestReserve_WithoutTheServiceTheRulesDecide(t *testing.T) {
	t.Parallel()
	open, closed := limitOf(policyv1.SessionKey_SESSION_KEY_RUN), limitOf(policyv1.SessionKey_SESSION_KEY_RUN)
	open.OnError, closed.Rule = policyv1.OnLimiterError_ON_LIMITER_ERROR_ALLOW, &policyv1.RuleRef{Document: "doc", Rule: "closed"}
	for name, tt := range map[string]struct {
		err    error
		limits []*policyv1.RuleLimit
		rule   string // the rule that the refusal names, or empty if the call is not refused
	}{
		"away, all rules allow":     {status.Error(codes.Unavailable, "x"), []*policyv1.RuleLimit{open, open}, ""},
		"too slow, all rules allow": {status.Error(codes.DeadlineExceeded, "x"), []*policyv1.RuleLimit{open}, ""},
		"away, one rule does not":   {status.Error(codes.Unavailable, "x"), []*policyv1.RuleLimit{open, closed}, "closed"},
		"refused by the service":    {status.Error(codes.InvalidArgument, "x"), []*policyv1.RuleLimit{open}, "limits"},
		"another error":             {errors.New("x"), []*policyv1.RuleLimit{open}, "limits"},
	} {
		f := newFixture(t)
		f.limiter.reserve = func() (*ratelimitv1.ReserveLimitsResponse, error) { return nil, tt.err }
		a := decided(newAttempt(t, callText), limited(tt.limits...))
		got, refused := f.client(t).Reserve(t.Context(), a, "key")
		if (refused == nil) != (tt.rule == "") || refused != nil && (refused.Code != noLimiter || refused.Rule.GetRule() != tt.rule || refused.PolicyRevision != "rev") || got.Lease != nil {
			t.Errorf("%s: refused as %+v", name, refused)
		}
		if !f.logged("decision_id=" + a.ID) {
			t.Errorf("%s: logged is %s", name, f.log.String())
		}
	}
}

// Two instances of the rate limit service respond alternately. Calls are refused, because each instance counts
// separately and every limit would be doubled.
func TestReserve_RefusesWhileTwoInstancesAnswer(t *testing.T) {
	t.Parallel()
	many := []string{"a"}
	for i := range 17 { // one more restart than the gateway remembers
		many = append(many, fmt.Sprint(i))
	}
	for name, tt := range map[string]struct {
		instances []string
		passed    string // + for each allowed call, - for each refused one
	}{
		"one":                            {[]string{"a", "a", "a"}, "+++"},
		"one that is restarted":          {[]string{"a", "b", "b"}, "+++"},
		"one that is restarted often":    {[]string{"a", "b", "c", "d"}, "++++"},
		"of an earlier version":          {[]string{"", "", ""}, "+++"},
		"an earlier version between":     {[]string{"a", "", "a", "", "a"}, "+++++"},
		"two":                            {[]string{"a", "b", "a", "b"}, "++--"},
		"two, one of them seldom":        {[]string{"a", "b", "b", "a"}, "+++-"},
		"three":                          {[]string{"a", "b", "c", "a"}, "+++-"},
		"an instance that was forgotten": {append(many, "a"), strings.Repeat("+", 19)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.limiter.grants(tt.instances...)
				open := limitOf(policyv1.SessionKey_SESSION_KEY_RUN)
				open.OnError = policyv1.OnLimiterError_ON_LIMITER_ERROR_ALLOW // not used, because the service is available
				client, passed := f.client(t), ""
				for i := range tt.instances {
					time.Sleep(time.Millisecond)
					_, refused := client.Reserve(t.Context(), decided(newAttempt(t, callText), limited(open)), "key")
					if refused == nil {
						passed += "+"
						continue
					}
					passed += "-"
					last := f.limiter.settled[len(f.limiter.settled)-1]
					if refused.Code != noLimiter || refused.Message != attempt.Miscounted+"." || refused.Rule.GetRule() != "limits" || last.GetLeaseId() != fmt.Sprint("lease ", i+1) {
						t.Errorf("refused as %+v, and given back is %v", refused, last)
					}
				}
				if split := strings.Contains(passed, "-"); passed != tt.passed || client.IsMiscounting() != split {
					t.Errorf("passed %s, want %s; miscounting: %t", passed, tt.passed, client.IsMiscounting())
				}
				time.Sleep(time.Minute)
				if _, refused := client.Reserve(t.Context(), decided(newAttempt(t, callText), limited(open)), "key"); refused != nil || client.IsMiscounting() {
					t.Errorf("a minute later: %+v", refused)
				}
			})
		})
	}
}

// The gateway sends a request to an instance of the service, and the instance is replaced before its response arrives.
// The late response must not count as a response from a second instance.
func TestReserve_IgnoresLateAnswersOfAReplacedInstance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		client, late := f.client(t), make(chan struct{})
		granted := func(instance string) func() (*ratelimitv1.ReserveLimitsResponse, error) {
			return func() (*ratelimitv1.ReserveLimitsResponse, error) {
				return &ratelimitv1.ReserveLimitsResponse{Instance: instance, Result: &ratelimitv1.ReserveLimitsResponse_Lease{Lease: new(ratelimitv1.Lease)}}, nil
			}
		}
		reserve := func() {
			time.Sleep(time.Millisecond)
			if _, refused := client.Reserve(t.Context(), decided(newAttempt(t, callText), limited(limitOf(policyv1.SessionKey_SESSION_KEY_RUN))), "key"); refused != nil {
				t.Errorf("refused as %+v", refused)
			}
		}
		use := func(reserve func() (*ratelimitv1.ReserveLimitsResponse, error)) {
			f.limiter.mu.Lock()
			defer f.limiter.mu.Unlock()
			f.limiter.reserve = reserve
		}
		use(granted("old"))
		reserve()
		use(func() (*ratelimitv1.ReserveLimitsResponse, error) {
			<-late
			return granted("old")()
		})
		ended := make(chan struct{})
		go func() { defer close(ended); reserve() }()
		time.Sleep(time.Second)
		use(granted("new"))
		reserve()
		close(late)
		<-ended
		reserve()
		if client.IsMiscounting() {
			t.Error("a restart counts as two instances")
		}
	})
}

func TestReleaseLease_GivesBackWhatWasNeverSent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	client := f.client(t)
	client.ReleaseLease(t.Context(), "", "d")
	client.ReleaseLease(t.Context(), "lease", "d")
	want := &ratelimitv1.SettleLeaseRequest{Target: &ratelimitv1.SettleLeaseRequest_LeaseId{LeaseId: "lease"}, Settlement: ratelimitv1.Settlement_SETTLEMENT_NEVER_SENT}
	if diff := cmp.Diff([]*ratelimitv1.SettleLeaseRequest{want}, f.limiter.settled, protocmp.Transform()); diff != "" || f.log.Len() != 0 {
		t.Errorf("(-want +got):\n%s\nlogged is %s", diff, f.log.String())
	}
	f.limiter.settle = errors.New("x")
	client.ReleaseLease(t.Context(), "lease", "the-decision")
	if !f.logged("decision_id=the-decision") {
		t.Errorf("logged is %s", f.log.String())
	}
}
