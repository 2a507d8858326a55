package journal_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func decisions(records []journal.Record) []string {
	var all []string
	for _, rec := range records {
		all = append(all, rec.DecisionID)
	}
	return all
}

func TestTail_MergesChainsByTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(t.TempDir())
		cfg.SegmentBytes = 4 << 10
		j := open(t, cfg)
		var all []string
		for i := range 100 {
			time.Sleep(time.Millisecond)
			id := fmt.Sprint("d", i)
			all = append(all, id)
			if i%3 == 0 {
				writeRefusal(t, j, id)
			} else {
				writeIntent(t, j, id)
			}
		}
		for _, n := range []int{-1, 0, 1, 2, 7, 50, 99, 100, 1000} {
			got, err := j.Tail(t.Context(), n, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(slices.Clone(all[len(all)-max(0, min(n, len(all))):]), decisions(got), cmp.Comparer(slices.Equal[[]string])); diff != "" {
				t.Errorf("the newest %d: %s", n, diff)
			}
		}
		got, err := j.Tail(t.Context(), 2, func(rec *journal.Record) bool { return rec.Kind == journal.KindRefusal })
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"d96", "d99"}, decisions(got)); diff != "" {
			t.Errorf("the newest refusals: %s", diff)
		}
	})
}

// A client reads a list in parts; each part continues at a Position. Records are written between the parts. The list
// contains each record of both chains exactly once.
func TestBackward_ContinuesAtPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(t.TempDir())
		cfg.SegmentBytes = 4 << 10
		j := open(t, cfg)
		var all []string
		write := func(id string) {
			time.Sleep(time.Millisecond)
			if all = append(all, id); len(all)%3 == 0 {
				writeRefusal(t, j, id)
			} else {
				writeIntent(t, j, id)
			}
		}
		for i := range 100 {
			write(fmt.Sprint("d", i))
		}
		for _, size := range []int{1, 2, 7, 99, 100, 101} {
			want := slices.Clone(all)
			slices.Reverse(want)
			var got []string
			var at journal.Position
			for before := -1; before != len(got); {
				before = len(got)
				for listed, err := range j.Backward(t.Context(), at, nil) {
					if err != nil {
						t.Fatal(err)
					}
					got, at = append(got, listed.Record.DecisionID), listed.Position
					if len(got)-before == size {
						break
					}
				}
				for i := range 3 { // into both chains
					write(fmt.Sprint("later", size, len(got), i))
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("pages of %d: %s", size, diff)
			}
		}
	})
}

func TestTail_ReadsLinesAcrossChunks(t *testing.T) {
	t.Parallel()
	j := open(t, config(t.TempDir()))
	var all []string
	for i := range 300 {
		rec := fullRecord()
		rec.DecisionID, rec.PolicyRevision = fmt.Sprint("d", i), strings.Repeat("x", i*37%5000)
		if i == 150 {
			rec.PolicyRevision = strings.Repeat("x", 200<<10)
		}
		if err := j.Intent(t.Context(), &rec); err != nil {
			t.Fatal(err)
		}
		all = append(all, rec.DecisionID)
	}
	got, err := j.Tail(t.Context(), 300, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(all, decisions(got)); diff != "" {
		t.Error(diff)
	}
}

func TestTail_EndsWithContextAndNamesDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, config(dir))
	writeIntent(t, j, "a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := j.Tail(ctx, 1, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if _, err := j.Find(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	overwrite(t, files(t, dir, "calls")[0], 20, '?')
	var broken *journal.BrokenError
	if _, err := j.Tail(t.Context(), 1, nil); !errors.As(err, &broken) {
		t.Errorf("Tail returns %v", err)
	}
	if _, err := j.Find(t.Context(), "a"); !errors.As(err, &broken) || broken.Line != 1 {
		t.Errorf("Find returns %v", err)
	}
}

func TestFind_ReturnsEveryRecordOfDecision(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(t.TempDir())
		cfg.SegmentBytes = 4 << 10
		j := open(t, cfg)
		for i := range 50 {
			id := fmt.Sprint("d", i)
			writeIntent(t, j, id)
			time.Sleep(time.Millisecond)
			err := j.Outcome(t.Context(), &journal.Record{DecisionID: id, Message: `"decision_id":"d7"`, Tool: "d7"})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
			writeRefusal(t, j, id)
		}
		got, err := j.Find(t.Context(), "d7")
		if err != nil {
			t.Fatal(err)
		}
		var kinds []journal.Kind
		for _, rec := range got {
			if rec.DecisionID != "d7" {
				t.Errorf("found a record of %s", rec.DecisionID)
			}
			kinds = append(kinds, rec.Kind)
		}
		if diff := cmp.Diff([]journal.Kind{journal.KindIntent, journal.KindOutcome, journal.KindRefusal}, kinds); diff != "" {
			t.Error(diff)
		}
		for _, id := range []string{"", "d", "d77", "d\xff", `d7"`} {
			if got, err := j.Find(t.Context(), id); err != nil || len(got) != 0 {
				t.Errorf("%q: found %d records: %v", id, len(got), err)
			}
		}
	})
}

func TestCalls_YieldsRecordsSinceTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		cfg := config(dir)
		cfg.SegmentBytes = 4 << 10
		j := open(t, cfg)
		var all []string
		for i := range 60 {
			if i == 40 {
				time.Sleep(time.Hour)
			}
			all = append(all, fmt.Sprint("d", i))
			writeIntent(t, j, all[i])
			writeRefusal(t, j, "r")
		}
		closeJournal(t, j)
		j = open(t, cfg)
		collect := func(since time.Time) []string {
			var got []string
			for rec, err := range j.Calls(t.Context(), since) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, rec.DecisionID)
			}
			return got
		}
		if diff := cmp.Diff(all, collect(time.Time{})); diff != "" {
			t.Error(diff)
		}
		newer := collect(time.Now().Add(-time.Minute))
		if n := len(newer); n < 20 || n > 50 || !slices.Equal(newer, all[60-n:]) {
			t.Errorf("of the last minute there are %v", newer)
		}
		for range j.Calls(t.Context(), time.Time{}) {
			break
		}
		synctest.Wait() // otherwise the check of older records would find and record that they are missing
		for _, path := range files(t, dir, "calls") {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		for rec, err := range j.Calls(t.Context(), time.Time{}) {
			t.Errorf("of removed segments there is %+v, %v", rec, err)
		}
	})
}
