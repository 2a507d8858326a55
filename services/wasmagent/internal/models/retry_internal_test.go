package models

import (
	"context"
	"errors"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

func TestRetryAfter_ParsesFormsOfProviders(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		status int
		header map[string]string
		want   time.Duration
	}{
		{429, nil, 0},
		{429, map[string]string{"Retry-After": "7"}, 7 * time.Second},
		{503, map[string]string{"Retry-After": " 1.5 "}, 1500 * time.Millisecond},
		{429, map[string]string{"Retry-After": "Thu, 26 Nov 2026 12:00:30 GMT"}, 30 * time.Second},
		{429, map[string]string{"Retry-After": "Thu, 26 Nov 2026 11:00:00 GMT"}, 0},
		{429, map[string]string{"Retry-After-Ms": "250", "Retry-After": "9"}, 250 * time.Millisecond},
		{429, map[string]string{"X-Ratelimit-Remaining-Tokens": "0", "X-Ratelimit-Reset-Tokens": "1m3s", "X-Ratelimit-Remaining-Requests": "9", "X-Ratelimit-Reset-Requests": "1h"}, 63 * time.Second},
		{429, map[string]string{"Anthropic-Ratelimit-Requests-Remaining": "0", "Anthropic-Ratelimit-Requests-Reset": "2026-11-26T12:00:12Z", "Anthropic-Ratelimit-Tokens-Remaining": "5", "Anthropic-Ratelimit-Tokens-Reset": "2026-11-26T13:00:00Z"}, 12 * time.Second},
		{500, map[string]string{"X-Ratelimit-Remaining-Tokens": "0", "X-Ratelimit-Reset-Tokens": "1m3s"}, 0},
		{429, map[string]string{"Retry-After": "-5"}, 0},
		{429, map[string]string{"Retry-After": "NaN"}, 0},
		{429, map[string]string{"Retry-After": "soon"}, 0},
		{429, map[string]string{"Retry-After": "1e300"}, math.MaxInt64},
		{429, map[string]string{"Retry-After": "1e999"}, math.MaxInt64},
	} {
		header := http.Header{}
		for name, value := range c.header {
			header.Set(name, value)
		}
		if got := retryAfter(c.status, header, now); got != c.want {
			t.Errorf("%v requests a wait of %s, want %s", c.header, got, c.want)
		}
	}
}

// A delay is at least as long as the provider requests. If the provider requests no delay, the delays grow with each
// try. Each delay is reported as progress, and no delay goes beyond the deadline.
func TestRetry_WaitsWithinTheDeadline(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		failure     FailureError
		deadline    time.Duration
		tries       int
		least, most time.Duration
	}{
		"back-off":                       {FailureError{Kind: ErrOverloaded, isRetryable: true}, time.Hour, 5, 7500 * time.Millisecond, 15 * time.Second},
		"wait requested by the provider": {FailureError{Kind: ErrRateLimited, RetryAfter: 20 * time.Second, isRetryable: true}, time.Hour, 5, 80 * time.Second, 84 * time.Second},
		"requested wait too long":        {FailureError{Kind: ErrRateLimited, RetryAfter: 6 * time.Minute, isRetryable: true}, time.Hour, 1, 0, 0},
		"requested wait without end":     {FailureError{Kind: ErrRateLimited, RetryAfter: math.MaxInt64, isRetryable: true}, time.Hour, 1, 0, 0},
		"beyond the deadline":            {FailureError{Kind: ErrRateLimited, RetryAfter: 20 * time.Second, isRetryable: true}, 30 * time.Second, 2, 20 * time.Second, 21 * time.Second},
		"answer had begun":               {FailureError{Kind: ErrInterrupted, MayBeCharged: true, isRetryable: true}, time.Hour, 1, 0, 0},
		"permanent error":                {FailureError{Kind: ErrRejected}, time.Hour, 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.deadline)
				defer cancel()
				begin, attempts, reports := time.Now(), 0, 0
				err := Retry{5, time.Second}.run(ctx, func(string) { reports++ }, func() error {
					attempts++
					f := c.failure
					return &f
				})
				var f *FailureError
				if !errors.As(err, &f) || f.Tries != attempts || attempts != c.tries || reports != attempts-1 {
					t.Errorf("%d tries, %d reports: %v", attempts, reports, err)
				}
				if took := time.Since(begin); took < c.least || took > c.most {
					t.Errorf("the tries took %s, want %s to %s", took, c.least, c.most)
				}
			})
		})
	}
}

func TestRetry_EndsWhenCallerCancels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { time.Sleep(time.Second); cancel() }()
		begin := time.Now()
		err := Retry{5, time.Minute}.run(ctx, func(string) {}, func() error { return &FailureError{Kind: ErrOverloaded, isRetryable: true} })
		if !errors.Is(err, context.Canceled) || time.Since(begin) != time.Second {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
	})
}

func TestStatusFailure_HasKindOfStatus(t *testing.T) {
	t.Parallel()
	quota := `{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}`
	for _, c := range []struct {
		status int
		header map[string]string
		body   string
		kind   error
		again  bool
	}{
		{429, nil, `<html>`, ErrRateLimited, true},
		{429, nil, quota, ErrRateLimited, false},
		{429, map[string]string{"X-Should-Retry": "false"}, "", ErrRateLimited, false},
		{529, nil, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`, ErrOverloaded, true},
		{500, nil, "", ErrOverloaded, true}, {502, nil, "", ErrOverloaded, true}, {408, nil, "", ErrOverloaded, true},
		{409, nil, "", ErrRejected, false},
		{409, map[string]string{"X-Should-Retry": "true"}, "", ErrOverloaded, true},
		{409, map[string]string{"Retry-After": "1"}, "", ErrOverloaded, true},
		{401, nil, "", ErrAuth, false}, {403, nil, "", ErrAuth, false},
		{400, nil, "", ErrRejected, false}, {404, nil, "null", ErrRejected, false}, {302, nil, "", ErrRejected, false},
	} {
		header := http.Header{}
		for name, value := range c.header {
			header.Set(name, value)
		}
		f := statusFailure(c.status, header, []byte(c.body), time.Now())
		if !errors.Is(f, c.kind) || f.isRetryable != c.again || f.MayBeCharged {
			t.Errorf("%d %v is %v, again %v", c.status, c.header, f, f.isRetryable)
		}
	}
}
