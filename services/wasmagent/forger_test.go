package wasmagent_test

import (
	"crypto/sha256"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/events"
)

func packEvent(t *testing.T, e *wasmstorev1.StoredEvent) []byte {
	t.Helper()
	text, err := proto.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	return append(sum[:], text...)
}

func (f *forger) event(id string, place int, change func(text []byte) []byte) {
	f.t.Helper()
	var text []byte
	if err := f.db.QueryRowContext(f.t.Context(), "SELECT event FROM events WHERE id = $1 AND place = $2", id, place).Scan(&text); err != nil {
		f.t.Fatal(err)
	}
	f.exec("UPDATE events SET event = $3 WHERE id = $1 AND place = $2", id, place, change(text))
}

func (f *forger) journal(id string) (all []*wasmstorev1.StoredEvent) {
	f.t.Helper()
	rows, err := f.db.QueryContext(f.t.Context(), "SELECT event FROM events WHERE id = $1 ORDER BY place", id)
	if err != nil {
		f.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var text []byte
		e := new(wasmstorev1.StoredEvent)
		if err := errors.Join(rows.Scan(&text), proto.Unmarshal(text[min(len(text), sha256.Size):], e)); err != nil {
			f.t.Fatal(err)
		}
		all = append(all, e)
	}
	if err := rows.Err(); err != nil {
		f.t.Fatal(err)
	}
	return all
}

func (f *forger) truncate(id string, n int) {
	f.t.Helper()
	all := f.journal(id)
	last := len(all) - n
	f.exec("DELETE FROM events WHERE id = $1 AND place > $2", id, last)
	f.record(id, func(r *wasmstorev1.Record) {
		end := all[last-1].GetEvent()
		r.Head.Place, r.Head.Epoch, r.Head.Sequence, r.Head.Hash = int64(last), end.GetEpoch(), end.GetSequence(), end.GetHash()
	})
}

// makeOld converts a stored agent to the format of an earlier release, in which journals did not record the stored
// parts.
func (f *forger) makeOld(id string) {
	f.t.Helper()
	f.record(id, func(r *wasmstorev1.Record) {
		head := events.EmptyHead(r.GetJournalId())
		heads := make(map[string]*wasmstorev1.Head)
		all := f.journal(id)
		f.exec("DELETE FROM events WHERE id = $1", id)
		sequences := make(map[int64]int64)
		for _, e := range all {
			before := e.GetEvent().GetHash()
			if e.GetEvent().GetKind() == wasmagentv1.EventKind_EVENT_KIND_STORED {
				heads[before] = head
				continue
			}
			oldSequence := e.GetEvent().GetSequence()
			e.Event.EffectSequence = sequences[e.GetEvent().GetEffectSequence()]
			e, head = events.Append(head, e.GetEvent(), e.Envelope)
			sequences[oldSequence] = e.GetEvent().GetSequence()
			f.exec("INSERT INTO events (id, place, event) VALUES ($1, $2, $3)", id, head.GetPlace(), packEvent(f.t, e))
		}
		r.Head = head
		for _, k := range r.GetKept() {
			k.Head = heads[k.GetHead().GetHash()]
		}
	})
}
