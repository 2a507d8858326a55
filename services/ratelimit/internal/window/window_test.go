package window_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/ratelimit/internal/window"
)

const minute = time.Minute

// take contains the arguments of one call to Take.
type take struct {
	at    time.Duration
	cost  int64
	limit int64
}

func TestLog_Check(t *testing.T) {
	t.Parallel()
	full := []take{{at: 0, cost: 1, limit: 3}, {at: time.Second, cost: 1, limit: 3}, {at: 2 * time.Second, cost: 1, limit: 3}}
	tests := []struct {
		name  string
		taken []take
		now   time.Duration
		cost  int64
		limit int64
		want  window.Verdict
	}{
		{"an empty window fits its limit", nil, 0, 10, 10, window.Verdict{Fits: true, Remaining: 10}},
		{"one more than the limit never fits", nil, 0, 11, 10, window.Verdict{Never: true, Remaining: 10}},
		{"a limit of zero fits nothing", nil, 0, 1, 0, window.Verdict{Never: true}},
		{"a negative limit fits nothing", nil, 0, 1, -1, window.Verdict{Never: true}},
		{"a cost of zero is no question", nil, 0, 0, 10, window.Verdict{Never: true, Remaining: 10}},
		{"a negative cost is no question", full, minute, -5, 3, window.Verdict{Never: true}},
		{"a full window waits for its oldest unit", full, 3 * time.Second, 1, 3, window.Verdict{Wait: 57*time.Second + 1}},
		{"a cost of two waits for the second oldest", full, 3 * time.Second, 2, 3, window.Verdict{Wait: 58*time.Second + 1}},
		{"the whole limit waits for the newest", full, 3 * time.Second, 3, 3, window.Verdict{Wait: 59*time.Second + 1}},
		{"one window later the stretch is still closed", full, minute, 1, 3, window.Verdict{Wait: 1}},
		{"a nanosecond past one window it is open", full, minute + 1, 1, 3, window.Verdict{Fits: true, Remaining: 1}},
		{"a clock that jumps back stays where it was", full, 0, 1, 3, window.Verdict{Wait: 58*time.Second + 1}},
		{"a lowered limit counts the same history", full, 3 * time.Second, 1, 2, window.Verdict{Wait: 58*time.Second + 1}},
		{"a raised limit counts the same history", full, 3 * time.Second, 2, 5, window.Verdict{Fits: true, Remaining: 2}},
		{"a clock that jumps to the end of time has passed the window", full, 1<<63 - 1, 3, 3, window.Verdict{Fits: true, Remaining: 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			log := window.New(minute)
			for _, k := range tt.taken {
				if _, ok := log.Take(k.at, k.cost, k.limit); !ok {
					t.Fatalf("Take(%v) was refused", k)
				}
			}
			got := log.Check(tt.now, tt.cost, tt.limit)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Ask(%v, %d, %d): -want +got\n%s", tt.now, tt.cost, tt.limit, diff)
			}
			if second := log.Check(tt.now, tt.cost, tt.limit); second != got {
				t.Errorf("the second result is %+v, the first %+v", second, got)
			}
			if _, ok := log.Take(tt.now, tt.cost, tt.limit); ok != got.Fits {
				t.Errorf("Take returns %t, Ask returned %t", ok, got.Fits)
			}
		})
	}
}

func TestLog_NothingFitsWhenTheLengthIsInvalid(t *testing.T) {
	t.Parallel()
	for name, log := range map[string]window.Log{
		"the zero log":       {},
		"a negative length":  window.New(-minute),
		"more than a year":   window.New(window.MaxLength + 1),
		"the longest number": window.New(1<<63 - 1),
	} {
		if _, ok := log.Take(0, 1, 10); ok {
			t.Errorf("%s: a unit was taken", name)
		}
		if v := log.Check(0, 1, 10); v.Fits || !v.Never {
			t.Errorf("%s: %+v, want never", name, v)
		}
	}
}

func TestLog_RoundsTimesUpAboveMaxExact(t *testing.T) {
	t.Parallel()
	const slot = minute / 64 // 937.5 ms
	log := window.New(minute)
	for range 1000 {
		if _, ok := log.Take(0, 1, 1000); !ok {
			t.Fatal("a unit within the limit was refused")
		}
	}
	// All units of the slot count as taken at the last nanosecond of the slot.
	want := window.Verdict{Wait: slot - 1 + minute + 1}
	if got := log.Check(0, 1, 1000); got != want {
		t.Errorf("full at once: %+v, want %+v", got, want)
	}
	if v := log.Check(want.Wait-1, 1, 1000); v.Fits {
		t.Error("fits before its time")
	}
	if v := log.Check(want.Wait, 1000, 1000); !v.Fits {
		t.Errorf("does not fit after its wait: %+v", v)
	}
}

func TestLog_StaysValidWhenTheLimitCrossesMaxExact(t *testing.T) {
	t.Parallel()
	const slot = minute / 64
	log := window.New(minute)
	if _, ok := log.Take(0, 300, 300); !ok { // recorded as slot-1
		t.Fatal("300 of 300 do not fit")
	}
	if _, ok := log.Take(1, 1, 301); !ok {
		t.Fatal("one more does not fit")
	}
	// More units were taken than the lowered limit allows. Their times are rounded, so all of them stop counting at the
	// same time. No unit fits until then.
	if v := log.Check(2, 1, 256); v.Wait != slot-1+minute+1-2 || v.Remaining != 0 {
		t.Errorf("after a fall: %+v", v)
	}
	now := slot + minute
	for range 256 {
		if _, ok := log.Take(now, 1, 256); !ok {
			t.Fatal("an emptied window is not empty")
		}
		now++
	}
	// The limit is raised above MaxExact. Times that were recorded exactly stay exact.
	if v := log.Check(now, 45, 300); v.Wait != minute+1-256 {
		t.Errorf("after a rise: %+v, want a wait of %v", v, minute+1-256)
	}
}

func TestLog_Undo(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name      string
		undo      []int // indexes of takes, in the order in which they are undone
		now       time.Duration
		remaining int64
	}{
		{"the oldest", []int{0}, 3 * time.Second, 6},
		{"the newest", []int{3}, 3 * time.Second, 5},
		{"one in the middle, its twin stays", []int{1}, 3 * time.Second, 6},
		{"both of a pair", []int{2, 1}, 3 * time.Second, 7},
		{"all, out of order", []int{2, 0, 3, 1}, 3 * time.Second, 10},
		{"one that no longer counts", []int{0}, minute + 1, 6},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			takes := []take{{at: 0, cost: 2}, {at: time.Second, cost: 2}, {at: time.Second, cost: 1}, {at: 2 * time.Second, cost: 1}}
			stamps := make([]time.Duration, len(takes))
			log := window.New(minute)
			for i, k := range takes {
				var ok bool
				if stamps[i], ok = log.Take(k.at, k.cost, 10); !ok {
					t.Fatalf("Take(%v) was refused", k)
				}
			}
			log.Check(tt.now, 1, 10)
			for _, i := range tt.undo {
				log.Undo(stamps[i], takes[i].cost)
			}
			if got := log.Check(tt.now, 1, 10).Remaining; got != tt.remaining {
				t.Errorf("remaining %d, want %d", got, tt.remaining)
			}
			if got, want := log.Empty(tt.now), tt.remaining == 10; got != want {
				t.Errorf("Empty %t, want %t", got, want)
			}
		})
	}
}

func TestLog_UndoIgnoresUnknownStamps(t *testing.T) {
	t.Parallel()
	log := window.New(minute)
	stamp, _ := log.Take(5, 3, 10)
	log.Undo(stamp+1, 3)
	log.Undo(stamp-1, 3)
	log.Undo(stamp, -3)
	if got := log.Check(5, 1, 10).Remaining; got != 7 {
		t.Errorf("remaining %d, want 7", got)
	}
}

func TestLog_EmptyFrom(t *testing.T) {
	t.Parallel()
	log := window.New(minute)
	if !log.Empty(0) {
		t.Error("a new log is not empty")
	}
	log.Take(3, 1, 10)
	log.Take(9, 1, 10)
	from := log.EmptyFrom()
	if want := 9 + minute + 1; from != want {
		t.Errorf("EmptyFrom %v, want %v", from, want)
	}
	if log.Empty(from - 1) {
		t.Error("empty before EmptyFrom")
	}
	if !log.Empty(from) {
		t.Error("not empty at EmptyFrom")
	}
}

func BenchmarkTake(b *testing.B) {
	for name, limit := range map[string]int64{"exact": 256, "slots": 1_000_000} {
		b.Run(name, func(b *testing.B) {
			log := window.New(time.Second)
			var now time.Duration
			for b.Loop() {
				now += time.Second / 200
				log.Take(now, 1, limit)
			}
			b.ReportAllocs()
		})
	}
}
