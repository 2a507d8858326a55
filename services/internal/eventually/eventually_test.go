package eventually_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// fakeTB records the message of a failed test.
type fakeTB struct {
	testing.TB

	mu      sync.Mutex
	message string
}

func (*fakeTB) Helper() {}

func (f *fakeTB) Fatalf(format string, args ...any) {
	f.mu.Lock()
	f.message = fmt.Sprintf(format, args...)
	f.mu.Unlock()
	runtime.Goexit()
}

// outcome describes a call of a function of package eventually. message is empty if the function did not fail the test.
type outcome struct {
	message string
	took    time.Duration
	checks  int
}

// observe calls wait with a fake test. The condition becomes true after the given time.
func observe(trueAfter time.Duration, wait func(t testing.TB, ok func() bool)) outcome {
	var out outcome
	begin, fake, ended := time.Now(), new(fakeTB), make(chan struct{})
	go func() {
		defer close(ended)
		wait(fake, func() bool {
			out.checks++
			return time.Since(begin) >= trueAfter
		})
	}()
	<-ended
	out.took = time.Since(begin)
	fake.mu.Lock()
	defer fake.mu.Unlock()
	out.message = fake.message
	return out
}

func holds(t testing.TB, ok func() bool) {
	t.Helper()
	eventually.Holds(t, "the light is green", ok)
}

func within(limit time.Duration) func(t testing.TB, ok func() bool) {
	return func(t testing.TB, ok func() bool) {
		t.Helper()
		eventually.Within(t, limit, "the light is green", ok)
	}
}

const (
	never = 24 * time.Hour
	// delay is the maximum delay with which a result may be noticed.
	delay = time.Second
)

func TestEventually_ReturnsWhenTheConditionBecomesTrue(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(testing.TB, func() bool){"Holds": holds, "Within": within(time.Minute)} {
		for _, after := range []time.Duration{0, 10 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				got := observe(after, wait)
				if got.message != "" {
					t.Errorf("%s, true after %s: fails with %q", name, after, got.message)
				}
				if got.took < after || got.took > after+delay || after == 0 && got.took > 0 {
					t.Errorf("%s, true after %s: returns after %s", name, after, got.took)
				}
			})
		}
	}
}

func TestEventually_FailsWithTheDescriptionAfterTheLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		limit time.Duration
		wait  func(testing.TB, func() bool)
	}{
		{"Holds", 2 * time.Minute, holds},
		{"Within", 10 * time.Second, within(10 * time.Second)},
		{"Within", 5 * time.Minute, within(5 * time.Minute)},
	} {
		synctest.Test(t, func(t *testing.T) {
			got := observe(never, c.wait)
			if !strings.Contains(got.message, "the light is green") || !strings.Contains(got.message, c.limit.String()) {
				t.Errorf("%s: fails with %q, want the description and %s", c.name, got.message, c.limit)
			}
			if got.took < c.limit || got.took > c.limit+delay {
				t.Errorf("%s: fails after %s, want %s", c.name, got.took, c.limit)
			}
		})
	}
}

func TestWithin_ChecksLessOftenThanHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		often, rarely := observe(10*time.Second, holds), observe(10*time.Second, within(time.Minute))
		if rarely.checks < 2 || rarely.checks*2 > often.checks {
			t.Errorf("Holds checks %d times in 10 s, and Within %d times", often.checks, rarely.checks)
		}
	})
}
