package journal_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// model uses a journal on a disk that fails at random. It remembers which records must exist.
type model struct {
	t                                    *testing.T
	dir                                  string
	disk                                 *disk
	j                                    *journal.Journal
	n                                    int
	intents, refused, outcomes, refusals []string
}

func (m *model) id() string { m.n++; return fmt.Sprint("d", m.n) }

func (m *model) Intent(*rapid.T) {
	id := m.id()
	healthy := m.j.Healthy()
	err := m.j.Intent(m.t.Context(), &journal.Record{DecisionID: id})
	if err == nil && healthy != nil {
		m.t.Fatalf("an intent is accepted although Healthy returned %v", healthy)
	}
	if err == nil {
		m.intents = append(m.intents, id)
	} else {
		m.refused = append(m.refused, id)
	}
}

func (m *model) Outcome(*rapid.T) {
	id := m.id()
	_ = m.j.Outcome(m.t.Context(), &journal.Record{DecisionID: id}) // if the record can't be written, it is kept in memory
	m.outcomes = append(m.outcomes, id)
}

func (m *model) Refusal(*rapid.T) {
	id := m.id()
	if err := m.j.Refusal(m.t.Context(), &journal.Record{DecisionID: id}); err == nil {
		m.refusals = append(m.refusals, id)
	} else {
		m.refused = append(m.refused, id)
	}
}

func (m *model) Fault(t *rapid.T) {
	kind := rapid.IntRange(0, 3).Draw(t, "fault")
	room := rapid.IntRange(0, 2000).Draw(t, "room")
	m.disk.set(func(d *disk) {
		switch kind {
		case 0:
			d.full, d.room = true, room
		case 1:
			d.badSync = true
		case 2:
			d.badTruncate = true
		case 3:
			d.badOpen = true
		}
	})
}

func (m *model) Heal(*rapid.T) { m.disk.heal() }

// Check reads the journal, even while the disk fails. All acknowledged records must exist.
func (m *model) Check(t *rapid.T) {
	for _, acknowledged := range [][]string{m.intents, m.refusals} {
		if len(acknowledged) == 0 {
			continue
		}
		id := acknowledged[len(acknowledged)-1]
		if found, err := m.j.Find(m.t.Context(), id); err != nil || len(found) != 1 {
			t.Fatalf("%s was acknowledged; found %d: %v", id, len(found), err)
		}
	}
}

func (m *model) Wait(*rapid.T) { time.Sleep(time.Second); synctest.Wait() }

func TestJournal_KeepsAcknowledgedRecordsWhenDiskFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) { // synctest bubbles refuse the method Deadline
			m := &model{t: t, dir: filepath.Join(t.TempDir(), "j"), disk: &disk{}}
			cfg := journal.OnDisk(config(m.dir), m.disk.open)
			cfg.SegmentBytes = 4 << 10
			cfg.Sync = rapid.SampledFrom([]journal.Sync{journal.SyncNever, journal.SyncAlways}).Draw(rt, "sync")
			m.j = open(t, cfg)
			rt.Repeat(rapid.StateMachineActions(m))
			m.Heal(rt)
			m.Wait(rt)
			if err := m.j.Healthy(); err != nil {
				rt.Fatalf("on a good disk: %v", err)
			}
			closeJournal(t, m.j)
			verified(t, m.dir)
			var got []string
			for _, chain := range []string{"calls", "refusals"} {
				for _, id := range ids(t, m.dir, chain) {
					if id != "" {
						got = append(got, id)
					}
				}
			}
			want := slices.Concat(m.intents, m.outcomes, m.refusals)
			slices.Sort(want)
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				rt.Fatal(diff)
			}
		})
	})
}
