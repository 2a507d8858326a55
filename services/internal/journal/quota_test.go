package journal_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// halfShareConfig returns the configuration of a small journal in which one principal may use half of the capacity.
func halfShareConfig(dir string) journal.Config {
	cfg := config(dir)
	cfg.SegmentBytes = 16 << 10
	cfg.Calls.Bytes = 256 << 10
	return cfg
}

// callOf returns the record of a call by a subject. The parameter behind lists the principals on whose behalf the
// subject acts.
func callOf(subject string, behind ...string) journal.Record {
	rec := typicalRecord()
	rec.Subject, rec.Owner, rec.DecisionID = subject, "", subject
	for _, who := range behind {
		rec.Chain = append(rec.Chain, journal.Principal{Tenant: rec.Tenant, Subject: who})
	}
	return rec
}

// callUntilRefused makes calls until one is refused, but at most the given number of calls. It returns the number of
// accepted calls.
func callUntilRefused(t testing.TB, j *journal.Journal, rec journal.Record, most int) int {
	t.Helper()
	for n := range most {
		if err := j.Intent(t.Context(), &rec); err != nil {
			if !errors.Is(err, journal.ErrQuota) {
				t.Fatal(err)
			}
			return n
		}
		if err := j.Outcome(t.Context(), &rec); err != nil {
			t.Fatal(err)
		}
	}
	return most
}

// chargedBytes returns how many bytes of the journal's files are charged to a subject.
func chargedBytes(t testing.TB, dir, subject string) (bytes int64) {
	t.Helper()
	for _, line := range lines(t, dir, "calls") {
		rec := read(t, line)
		if rec.Subject == subject || slices.ContainsFunc(rec.Chain, func(p journal.Principal) bool { return p.Subject == subject }) {
			bytes += int64(len(line)) + 1
		}
	}
	return bytes
}

// Case X5. One principal makes an unlimited number of calls. They do not displace the records of other principals.
func TestIntent_IsRefusedWhenPrincipalHasUsedShare(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	cfg := halfShareConfig(dir)
	j := open(t, cfg)
	victim := callOf("victim")
	if err := j.Intent(t.Context(), &victim); err != nil {
		t.Fatal(err)
	}
	n := callUntilRefused(t, j, callOf("flood"), 100_000)
	if got, half := chargedBytes(t, dir, "flood"), cfg.Calls.Bytes/2; n < 10 || got < half-4<<10 || got > half+4<<10 {
		t.Errorf("after %d calls the principal uses %d bytes of %d", n, got, half)
	}
	for range 1000 { // further calls are refused too
		rec := callOf("flood")
		if err := j.Intent(t.Context(), &rec); !errors.Is(err, journal.ErrQuota) {
			t.Fatalf("one more intent returns %v", err)
		}
		if err := j.Claim(t.Context(), &rec); !errors.Is(err, journal.ErrQuota) {
			t.Fatalf("one more claim returns %v", err)
		}
	}
	if err := j.Healthy(); err != nil {
		t.Errorf("the journal is not well: %v", err)
	}
	if err := j.Intent(t.Context(), &victim); err != nil {
		t.Errorf("another principal is refused: %v", err)
	}
	// Other records of a call that has already begun must be accepted.
	begun := callOf("flood")
	if err := errors.Join(j.Outcome(t.Context(), &begun), j.Settled(t.Context(), &begun)); err != nil {
		t.Error(err)
	}
	closeJournal(t, j)
	if report := verified(t, dir); report.Calls.First != 1 || read(t, lines(t, dir, "calls")[0]).Subject != "victim" {
		t.Errorf("the other principal's record was removed: %+v", report.Calls)
	}
}

// Case X5. Concurrent calls are charged one after the other, although they are written together. Therefore a principal
// can't exceed its share by making many concurrent calls.
func TestIntent_ConcurrentCallsStayWithinShare(t *testing.T) {
	t.Parallel()
	for seed := range 4 {
		dir := filepath.Join(t.TempDir(), "journal")
		cfg := halfShareConfig(dir)
		cfg.Sync = journal.SyncAlways // many callers then wait for one write
		j := open(t, cfg)
		var calling sync.WaitGroup
		for caller := range 64 << (seed % 2) {
			calling.Go(func() {
				rec := callOf("flood")
				rec.DecisionID = strings.Repeat("d", 1+(caller*37+seed*11)%200) // records of many sizes
				for j.Intent(t.Context(), &rec) == nil {
					rec.DecisionID += "d"
				}
			})
		}
		calling.Wait()
		if got, half := chargedBytes(t, dir, "flood"), cfg.Calls.Bytes/2; got < half-4<<10 || got > half {
			t.Errorf("the principal uses %d bytes of %d", got, half)
		}
		closeJournal(t, j)
	}
}

// Case X5. The records of agents are also charged to the principal that created the agents.
func TestIntent_ChargesCreatorOfAgents(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	cfg := halfShareConfig(dir)
	j := open(t, cfg)
	n := 0
	for ; n < 1000; n++ {
		rec := callOf(fmt.Sprint("agent-", n), "maker", "maker")
		if err := j.Intent(t.Context(), &rec); err != nil {
			if !errors.Is(err, journal.ErrQuota) {
				t.Fatal(err)
			}
			break
		}
	}
	if got, half := chargedBytes(t, dir, "maker"), cfg.Calls.Bytes/2; got < half-2<<10 || got > half {
		t.Errorf("with %d agents the principal uses %d bytes of %d", n, got, half)
	}
	fresh := callOf("agent-of-another", "another")
	if err := j.Intent(t.Context(), &fresh); err != nil {
		t.Errorf("another's agent is refused: %v", err)
	}
	closeJournal(t, j)
}

// Case X5. After a restart, existing records count against the principals' shares as soon as their segments have been
// read.
func TestOpen_CountsSharesOfExistingRecords(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	cfg := halfShareConfig(dir)
	j := open(t, cfg)
	callUntilRefused(t, j, callOf("flood"), 100_000)
	closeJournal(t, j)
	before := chargedBytes(t, dir, "flood")
	for range 3 {
		j = open(t, cfg)
		for !j.Check().Done {
			select {
			case <-t.Context().Done():
				t.Fatal("the check does not end")
			case <-time.After(time.Millisecond):
			}
		}
		if n := callUntilRefused(t, j, callOf("flood"), 10); n > 1 {
			t.Errorf("after a restart %d more calls are accepted", n)
		}
		if n := callUntilRefused(t, j, callOf("other"), 10); n != 10 {
			t.Errorf("of another principal %d calls are accepted", n)
		}
		closeJournal(t, j)
	}
	if after := chargedBytes(t, dir, "flood"); after > before+8<<10 {
		t.Errorf("the principal used %d bytes, and now uses %d", before, after)
	}
}

// Case X5. A principal has used its share. When its records are more than a week old, they are removed to make space,
// and a record names them.
func TestIntent_RemovesOldRecordsForPrincipal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "journal")
		j := open(t, halfShareConfig(dir))
		first := callUntilRefused(t, j, callOf("busy"), 100_000)
		time.Sleep(6 * 24 * time.Hour)
		if n := callUntilRefused(t, j, callOf("busy"), 10); n != 0 {
			t.Errorf("after six days %d more calls are accepted", n)
		}
		time.Sleep(25 * time.Hour)
		second := callUntilRefused(t, j, callOf("busy"), 100_000)
		if second < first/2 || second > first+first/4 {
			t.Errorf("at first %d calls are accepted, and a week later %d", first, second)
		}
		closeJournal(t, j)
		verified(t, dir)
		shares := 0
		for _, line := range lines(t, dir, "calls") {
			for _, pruned := range read(t, line).Pruned {
				if pruned.Reason == journal.PrunedForQuota {
					shares++
				}
			}
		}
		if shares == 0 {
			t.Error("no record names the removed segments")
		}
	})
}

// Each principal may use the whole capacity. No call is refused. Instead, the oldest records are removed.
func TestIntent_FullShareRefusesNoCall(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	cfg := halfShareConfig(dir)
	cfg.Share = 1
	j := open(t, cfg)
	if n := callUntilRefused(t, j, callOf("only"), 500); n != 500 {
		t.Errorf("%d calls are accepted", n)
	}
	closeJournal(t, j)
	if report := verified(t, dir); report.Calls.First == 1 {
		t.Error("no segment was removed")
	}
}
