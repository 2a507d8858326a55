package models

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// DefaultTries is the default of Tries in [Retry].
	DefaultTries = 5
	// DefaultBackoff is the default of Backoff in [Retry]. The delay doubles with each further try, up to maxBackoff.
	DefaultBackoff = time.Second
	maxBackoff     = 30 * time.Second
	// maxRetryAfter is the longest delay that a provider may request. If it requests a longer delay, the question
	// fails.
	maxRetryAfter = 5 * time.Minute
)

// Retry determines how often and when a question is sent again, if the provider refuses it or the connection fails
// before an answer begins.
type Retry struct {
	// Tries limits how often a question is sent, including the first time. 0 means [DefaultTries], and 1 means that the
	// question is never sent again.
	Tries int
	// Backoff is the delay before the second try, unless the provider requests a delay. 0 means [DefaultBackoff].
	Backoff time.Duration
}

// wait returns the delay after a number of attempts. The backoff doubles with each attempt. If the provider requests a
// delay, the result is that delay plus a random time of up to a quarter of the backoff. Otherwise, the result is the
// backoff minus a random time of up to half of the backoff. Because of the random time, callers that were refused at
// the same time do not all retry at the same time.
func (r Retry) wait(attempts int, after time.Duration) time.Duration {
	most := min(time.Duration(float64(r.Backoff)*math.Pow(2, float64(attempts-1))), maxBackoff)
	jitter := time.Duration(rand.Float64() * float64(most) / 2) //nolint:gosec // not a secret
	if after > 0 {
		return after + jitter/2
	}
	return most - jitter
}

// run calls a function until it succeeds, fails with an error that can't be retried, or has failed as often as allowed.
// If the context's deadline would expire during the next delay, run returns the error immediately.
func (r Retry) run(ctx context.Context, progress func(string), once func() error) error {
	for attempts := 1; ; attempts++ {
		err := once()
		f, failed := err.(*FailureError) //nolint:errorlint // drivers do not wrap it
		if !failed {
			return err
		}
		f.Tries = attempts
		wait := r.wait(attempts, f.RetryAfter)
		deadline, bounded := ctx.Deadline()
		if !f.isRetryable || f.MayBeCharged || attempts >= r.Tries || f.RetryAfter > maxRetryAfter || bounded && time.Until(deadline) <= wait {
			return f
		}
		progress(fmt.Sprintf("%s; asks again in %s (try %d of %d)\n", f.shortText(), wait.Round(time.Millisecond), attempts+1, r.Tries))
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: %w", ctx.Err(), f) // the provider has refused every try, so it charges nothing
		}
	}
}

// shortText describes the failure for progress messages, without the provider's message.
func (f *FailureError) shortText() string {
	if f.Status == 0 {
		return f.Kind.Error()
	}
	return fmt.Sprintf("%s: status %d", f.Kind, f.Status)
}

// retryAfter returns the delay that a response requests, or 0 if it requests none. It reads Retry-After (RFC 9110,
// section 10.2.3), OpenAI's fields Retry-After-Ms and X-Ratelimit-Reset, and Anthropic's Anthropic-Ratelimit fields. If
// the delay is too long for a Duration, retryAfter returns the longest Duration.
func retryAfter(status int, header http.Header, now time.Time) time.Duration {
	if d, ok := parseUnits(header.Get("Retry-After-Ms"), time.Millisecond); ok {
		return d
	}
	if text := header.Get("Retry-After"); text != "" {
		if d, ok := parseUnits(text, time.Second); ok {
			return d
		}
		if at, err := http.ParseTime(text); err == nil {
			return max(at.Sub(now), 0)
		}
	}
	if status != http.StatusTooManyRequests {
		return 0
	}
	var wait time.Duration
	for name, values := range header {
		name = strings.ToLower(name)
		prefix, what, ok := strings.Cut(name, "-reset-")
		switch {
		case len(values) == 0:
		case ok && prefix == "x-ratelimit" && header.Get("X-Ratelimit-Remaining-"+what) == "0":
			if d, err := time.ParseDuration(values[0]); err == nil {
				wait = max(wait, d)
			}
		case strings.HasPrefix(name, "anthropic-ratelimit-") && strings.HasSuffix(name, "-reset"):
			kind := strings.TrimSuffix(name, "-reset")
			if at, err := time.Parse(time.RFC3339, values[0]); err == nil && header.Get(kind+"-remaining") == "0" {
				wait = max(wait, at.Sub(now))
			}
		}
	}
	return wait
}

// parseUnits parses a number of units, which may have a fractional part. It returns false if the text is not a number,
// or if the number is negative.
func parseUnits(text string, unit time.Duration) (time.Duration, bool) {
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if math.IsInf(n, 1) {
		return math.MaxInt64, true
	}
	if err != nil || math.IsNaN(n) || n < 0 {
		return 0, false
	}
	if n >= math.MaxInt64/float64(unit) {
		return math.MaxInt64, true
	}
	return time.Duration(n * float64(unit)), true
}
