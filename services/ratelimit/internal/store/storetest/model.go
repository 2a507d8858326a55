package storetest

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/ratelimit/internal/store"
)

// modelCases compare the store with a model in random histories.
var modelCases = []testCase{
	{name: "small limits follow the definition", exact: true, run: func(f *fixture) {
		f.compare([]int64{6, 6, 6, 3, 256}, 4, (*model).sameResult)
	}},
	{name: "large limits never grant more than the definition, and report correct waits", exact: true, run: func(f *fixture) {
		f.compare([]int64{300, 300, 1000, 200}, 150, (*model).noBetterResult)
	}},
}

// A unit records the cost that one call took from a bucket, and the time at which the call took it.
type unit struct {
	at   time.Duration
	cost int64
	call int
}

// A model is a simple implementation of a store. It records all units that were taken, and computes each result from
// all records.
type model struct {
	f            *fixture
	prefix       string // the prefix of all names, because one store serves many models
	maxes        []int64
	maxCost      int64 // the maximum cost
	now          time.Duration
	reservations []string // the ids of the reservations; the index is the number of the call
	taken        map[string][]unit
	check        func(m *model, t *rapid.T, limits []store.Limit, result store.Result)
}

// modelWindows maps the names of a model's buckets to their windows.
var modelWindows = map[string]time.Duration{"a": time.Second, "b": 3 * time.Second, "c": 20 * time.Millisecond}

// compare runs random histories on the store and on a model. No request costs more than maxCost. The function check
// checks the results.
func (f *fixture) compare(maxes []int64, maxCost int64, check func(*model, *rapid.T, []store.Limit, store.Result)) {
	rapid.Check(f, func(t *rapid.T) {
		f.calls++
		m := &model{f: f, prefix: fmt.Sprint(f.calls, "/"), maxes: maxes, maxCost: maxCost, taken: map[string][]unit{}, check: check}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0, 1, 2:
				m.sleep(time.Duration(rapid.SampledFrom([]int{1, 2, 19, 20, 21, 500, 999, 1000, 1001, 3001}).Draw(t, "ms")) * time.Millisecond)
			case 3:
				m.settle(t)
			default:
				m.reserve(t)
			}
		}
	})
}

func (m *model) sleep(d time.Duration) {
	m.f.Sleep(d)
	m.now += d
}

// reserve reserves units of random limits and checks the result.
func (m *model) reserve(t *rapid.T) {
	names := rapid.Permutation([]string{"a", "b", "c"}).Draw(t, "buckets")[:rapid.IntRange(1, 3).Draw(t, "limits")]
	limits := make([]store.Limit, len(names))
	for i, name := range names {
		limits[i] = store.Limit{
			Bucket: m.prefix + name,
			Max:    rapid.SampledFrom(m.maxes).Draw(t, "max"),
			Window: modelWindows[name],
			Cost:   rapid.Int64Range(1, m.maxCost).Draw(t, "cost"),
		}
	}
	m.check(m, t, limits, m.try(t, limits))
}

// try reserves units of limits and records a grant in the model. It fails the test if a grant exceeds a limit.
func (m *model) try(t *rapid.T, limits []store.Limit) store.Result {
	r := store.ReserveRequest{Key: fmt.Sprint(m.prefix, len(m.reservations)), Limits: limits, Lifetime: long}
	result, err := m.f.store.Reserve(m.f.Context(), r)
	if err != nil {
		t.Fatalf("Reserve %v: %v", limits, err)
	}
	if !result.Granted {
		return result
	}
	if !m.fits(limits, m.now) {
		t.Fatalf("%v at %v is too much", limits, m.now)
	}
	for _, l := range limits {
		m.taken[l.Bucket] = append(m.taken[l.Bucket], unit{at: m.now, cost: l.Cost, call: len(m.reservations)})
	}
	m.reservations = append(m.reservations, result.Reservation.ID)
	return result
}

// settle settles a random reservation, which may already be settled.
func (m *model) settle(t *rapid.T) {
	if len(m.reservations) == 0 {
		return
	}
	call := rapid.IntRange(0, len(m.reservations)-1).Draw(t, "call")
	outcome := rapid.SampledFrom([]store.Outcome{store.Sent, store.NeverSent}).Draw(t, "outcome")
	settled, err := m.f.store.Settle(m.f.Context(), m.reservations[call], outcome)
	if err != nil {
		t.Fatalf("Settle: %v", err)
	}
	if !settled || outcome == store.Sent {
		return
	}
	for bucket, units := range m.taken {
		m.taken[bucket] = slices.DeleteFunc(units, func(u unit) bool { return u.call == call })
	}
}

// unitsIn returns the number of units that were taken from the limit's bucket in a closed period. The period ends at
// the given time and has the length of the limit's window.
func (m *model) unitsIn(l store.Limit, end time.Duration) int64 {
	var sum int64
	for _, u := range m.taken[l.Bucket] {
		if end-u.at <= l.Window {
			sum += u.cost
		}
	}
	return sum
}

// fits reports whether the limits fit at the given time if no other units are taken before that time.
func (m *model) fits(limits []store.Limit, at time.Duration) bool {
	return !slices.ContainsFunc(limits, func(l store.Limit) bool { return m.unitsIn(l, at)+l.Cost > l.Max })
}

// sameResult checks that the store's result equals the model's result.
func (m *model) sameResult(t *rapid.T, limits []store.Limit, result store.Result) {
	for i, l := range limits {
		if want := max(0, l.Max-m.unitsIn(l, m.now)); result.Remaining[i] != want {
			t.Fatalf("%d left of %v at %v, want %d", result.Remaining[i], l, m.now, want)
		}
	}
	if result.Granted {
		return // the method try has checked the grant
	}
	never := slices.ContainsFunc(limits, func(l store.Limit) bool { return l.Cost > l.Max })
	switch fits := m.fits(limits, m.now); {
	case fits:
		t.Fatalf("%v is refused at %v though it fits", limits, m.now)
	case never != result.Never:
		t.Fatalf("%v: never %t, want %t", limits, result.Never, never)
	case never:
	case !m.fits(limits, m.now+result.RetryAfter):
		t.Fatalf("%v does not fit after %v", limits, result.RetryAfter)
	case m.fits(limits, m.now+result.RetryAfter-time.Millisecond):
		t.Fatalf("%v fits before %v have passed", limits, result.RetryAfter)
	}
}

// noBetterResult checks that the store does not report more remaining units than the model, and that a request fits
// after its retry time. The method try checks grants.
func (m *model) noBetterResult(t *rapid.T, limits []store.Limit, result store.Result) {
	for i, l := range limits {
		if most := max(0, l.Max-m.unitsIn(l, m.now)); result.Remaining[i] > most {
			t.Fatalf("%d left of %v at %v, at most %d are", result.Remaining[i], l, m.now, most)
		}
	}
	if result.Granted || result.Never {
		return
	}
	m.sleep(result.RetryAfter)
	if !m.try(t, limits).Granted {
		t.Fatalf("%v does not fit after %v", limits, result.RetryAfter)
	}
}
