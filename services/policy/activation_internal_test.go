package policy

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

// activated returns a set that has been activated at the given time. number is the number of the stored revision, or -1
// if the policies are in files.
func activated(number int64, at time.Time, digit string) *activeSet {
	a := &activeSet{activated: at, revision: strings.Repeat(digit, 64)}
	if number >= 0 {
		a.stored = &store.Revision{Number: number}
	}
	return a
}

// A replica satisfies an activation token from another replica if it has the same revision or a later one. If both
// tokens contain numbers of stored revisions, the numbers take precedence over times, because clocks may have been set
// back. The numbers also take precedence over equal content, because a rollback makes earlier content active again.
func TestReaches_StoredRevisionsAreOrderedByNumber(t *testing.T) {
	t.Parallel()
	now := time.Now()
	early, late := now.Add(-time.Hour), now.Add(time.Hour)
	for _, tt := range []struct {
		name       string
		have, want *activeSet
		reached    bool
	}{
		{"the same", activated(1, now, "a"), activated(1, now, "a"), true},
		{"the same at another time", activated(1, early, "a"), activated(1, late, "a"), true},
		{"a later number, with a clock that was set back", activated(2, early, "b"), activated(1, late, "a"), true},
		{"an earlier number, with a clock that is ahead", activated(1, late, "a"), activated(2, early, "b"), false},
		{"the same content, before a rollback to it", activated(1, late, "a"), activated(3, early, "a"), false},
		{"the same content, after a rollback to it", activated(3, early, "a"), activated(1, late, "a"), true},
		{"a later catalog", activated(1, late, "b"), activated(1, early, "a"), true},
		{"an earlier catalog", activated(1, early, "b"), activated(1, late, "a"), false},
		{"no documents applied", activated(0, late, "a"), activated(1, early, "b"), false},
		{"files, after stored ones", activated(-1, late, "b"), activated(1, early, "a"), false},
		{"stored ones, after files", activated(1, late, "b"), activated(-1, early, "a"), false},
		{"files", activated(-1, late, "b"), activated(-1, early, "a"), true},
	} {
		if got := tt.have.reaches(tt.want.activation()); got != tt.reached {
			t.Errorf("%s: %t, want %t (%s, %s)", tt.name, got, tt.reached, tt.have.activation(), tt.want.activation())
		}
	}
}

// The approval service compares activation tokens as text, so a later token must be greater as text.
func TestActivation_LaterTokensAreGreaterAsText(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var before string
	for _, number := range []int64{-1, 0, 1, 2, 35, 36, 1 << 40} {
		token := activated(number, now, "a").activation()
		if token <= before || len(token) > 128 {
			t.Errorf("%q is not greater than %q", token, before)
		}
		before = token
		now = now.Add(-time.Hour)
	}
}

func TestReaches_RefusesTextThatIsNoToken(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "s", "s1-", "s-1-a", "s!-1-a", "s0000000009-x!-aaaaaaaaaaaaaaaa", "s0000000009", "-", "1", "a-b-c"} {
		if activated(5, time.Now(), "a").reaches(text) {
			t.Errorf("%q is reached", text)
		}
	}
}

func TestWaitForLoading_EndsWhenTheRevisionIsLoaded(t *testing.T) {
	t.Parallel()
	s, loading := new(Service), &loadingRevision{done: make(chan struct{})}
	if err := s.waitForLoading(t.Context()); err != nil {
		t.Errorf("nothing is loaded: %v", err)
	}
	s.loading.Store(loading)
	ended := make(chan error)
	go func() { ended <- s.waitForLoading(t.Context()) }()
	select {
	case err := <-ended:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	loading.err = errNotLoaded
	close(loading.done)
	if err := <-ended; !errors.Is(err, errNotLoaded) {
		t.Errorf("a newer revision could not be read: %v", err)
	}
}
