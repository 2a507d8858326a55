package journal_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func TestFollow_YieldsEveryRecordOnce(t *testing.T) {
	t.Parallel()
	j := open(t, config(t.TempDir()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const before, between, after = 30, 20, 50
	n := 0
	record := func(more int) {
		for range more {
			if n%2 == 0 {
				writeIntent(t, j, fmt.Sprint("d", n))
			} else {
				writeRefusal(t, j, fmt.Sprint("d", n))
			}
			n++
		}
	}
	record(before)
	records := j.Follow(ctx, 10, nil, readAtOnce)
	record(between)
	var writer sync.WaitGroup
	defer writer.Wait()
	got := map[string]int{}
	for rec, err := range records {
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 {
			writer.Go(func() { record(after) })
		}
		got[rec.DecisionID]++
		if len(got) == 10+between+after {
			break
		}
	}
	for i := before - 10; i < before+between+after; i++ {
		if id := fmt.Sprint("d", i); got[id] != 1 {
			t.Errorf("%s was seen %d times", id, got[id])
		}
	}
}

func TestFollow_MissesNoRecordWhenStartedDuringWrites(t *testing.T) {
	t.Parallel()
	j := open(t, config(t.TempDir()))
	done := make(chan struct{})
	var writers sync.WaitGroup
	defer writers.Wait()
	defer close(done)
	for range 2 {
		writers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
					writeIntent(t, j, fmt.Sprint("d", i))
				}
			}
		})
	}
	for range 300 {
		var last int64
		n := 0
		for rec, err := range j.Follow(t.Context(), 5, nil, readAtOnce) {
			if errors.Is(err, journal.ErrSlowWatcher) {
				break // on a busy machine
			}
			if err != nil {
				t.Fatal(err)
			}
			if n++; n > 1 && rec.Seq != last+1 {
				t.Fatalf("record %d comes after record %d", rec.Seq, last)
			}
			if last = rec.Seq; n == 20 {
				break
			}
		}
	}
}

func TestFollow_AppliesFilter(t *testing.T) {
	t.Parallel()
	j := open(t, config(t.TempDir()))
	writeIntent(t, j, "old")
	writeRefusal(t, j, "old refusal")
	records := j.Follow(t.Context(), 10, func(rec *journal.Record) bool { return rec.Kind == journal.KindIntent }, readAtOnce)
	writeRefusal(t, j, "new refusal")
	writeIntent(t, j, "new")
	closeJournal(t, j)
	var got []string
	var last error
	for rec, err := range records {
		if err != nil {
			last = err
			continue
		}
		got = append(got, rec.DecisionID)
	}
	if diff := cmp.Diff([]string{"old", "new"}, got); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(last, journal.ErrClosed) {
		t.Errorf("the sequence ended with %v", last)
	}
	for _, err := range j.Follow(t.Context(), 0, nil, readAtOnce) {
		if !errors.Is(err, journal.ErrClosed) {
			t.Errorf("after Close the sequence yields %v", err)
		}
	}
}

func TestFollow_DropsSlowWatcher(t *testing.T) {
	t.Parallel()
	j := open(t, config(t.TempDir()))
	slow := j.Follow(t.Context(), 0, nil, readAtOnce)
	for i := range 2000 {
		writeIntent(t, j, fmt.Sprint("d", i))
	}
	n := 0
	var last error
	for rec, err := range slow {
		if last = err; err == nil {
			if rec.DecisionID != fmt.Sprint("d", n) {
				t.Fatalf("record %d is of %s", n, rec.DecisionID)
			}
			n++
		}
	}
	if !errors.Is(last, journal.ErrSlowWatcher) || n != 1024 {
		t.Errorf("the watcher received %d records and ended with %v", n, last)
	}
}

func TestFollow_EndsWithContextWithoutError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := open(t, config(t.TempDir()))
		ctx, cancel := context.WithCancel(t.Context())
		records := j.Follow(ctx, 0, nil, readAtOnce)
		j.Follow(ctx, 0, nil, readAtOnce) // the sequence is never read
		var watch sync.WaitGroup
		watch.Go(func() {
			for rec, err := range records {
				t.Errorf("the sequence yields %v, %v", rec, err)
			}
		})
		synctest.Wait()
		cancel()
		watch.Wait()
		writeIntent(t, j, "a")
		closeJournal(t, j)
	})
}

// readAtOnce is a read function for Follow that never waits.
func readAtOnce() (func(), error) { return func() {}, nil }
