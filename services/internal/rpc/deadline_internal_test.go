package rpc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// The deadline of a handler is slightly before the caller's deadline, so that the handler can still report the timeout.
func TestReserved_LeavesTimeToReport(t *testing.T) {
	t.Parallel()
	for given, want := range map[time.Duration]time.Duration{
		0: defaultDeadline, time.Hour: time.Hour - 20*time.Millisecond, time.Second: 980 * time.Millisecond,
		200 * time.Millisecond: 180 * time.Millisecond, 100 * time.Millisecond: 90 * time.Millisecond, time.Millisecond: 900 * time.Microsecond,
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			if given > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, given)
				defer cancel()
			}
			bounded, cancel, err := new(chain).deadline(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer cancel()
			if end, _ := bounded.Deadline(); time.Until(end) != want {
				t.Errorf("of %v the handler has %v, want %v", given, time.Until(end), want)
			}
		})
	}
}

// Case X2. The deadline of a unary call over the network is far in the future. The call, including the transfer of its
// message, nevertheless ends after at most 5 minutes.
func TestInTime_BoundsUnaryCalls(t *testing.T) {
	t.Parallel()
	for given, want := range map[time.Duration]time.Duration{
		0: 30 * time.Second, time.Second: time.Second, 5 * time.Minute: 5 * time.Minute, 24 * 365 * time.Hour: 5 * time.Minute,
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if given > 0 {
				ctx, cancel = context.WithTimeout(ctx, given)
				defer cancel()
			}
			begin := time.Now()
			<-withUnaryDeadline(ctx).Done()
			if took := time.Since(begin); took != want {
				t.Errorf("of %v a call lasted %v, want %v", given, took, want)
			}
		})
	}
}
