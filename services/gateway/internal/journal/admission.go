package journal

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// maxPeers is how many pairs of code and peer are told apart in one minute.
	maxPeers = 4096
	// otherPeers stands for the rest.
	otherPeers = "*"
)

// admissions counts what was refused before anybody was identified.
type admissions struct {
	mu     sync.Mutex
	since  time.Time
	counts map[refused]int64
}

type refused struct{ code, peer string }

// Admission counts a request that was refused with code before anybody was
// identified; peer is the address it came from, without its port. It only counts in
// memory: one record per code and peer is written each minute and at [Journal.Close].
// Where more than 4,096 pairs come in a minute, the rest share the peer "*".
func (j *Journal) Admission(code, peer string) {
	a := &j.admissions
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.counts == nil {
		a.counts, a.since = map[refused]int64{}, time.Now()
	}
	key := refused{code: code, peer: peer}
	if _, known := a.counts[key]; !known && len(a.counts) >= maxPeers {
		key.peer = otherPeers
	}
	a.counts[key]++
}

// take empties the counts.
func (a *admissions) take() (map[refused]int64, time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	counts := a.counts
	a.counts = nil
	return counts, a.since
}

// giveBack adds counts that could not be written.
func (a *admissions) giveBack(counts map[refused]int64, since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, n := range a.counts {
		if _, known := counts[key]; !known && len(counts) >= maxPeers {
			key.peer = otherPeers
		}
		counts[key] += n
	}
	a.counts, a.since = counts, since
}

// flushAdmissions writes the counts; what can't be written is counted on.
func (j *Journal) flushAdmissions(ctx context.Context) error {
	counts, since := j.admissions.take()
	if len(counts) == 0 {
		return nil
	}
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b refused) int {
		return cmp.Or(cmp.Compare(a.code, b.code), cmp.Compare(a.peer, b.peer))
	})
	bodies := make([][]byte, 0, len(keys))
	for _, key := range keys {
		var body bytes.Buffer
		rec := Record{
			Kind: KindAdmission, Code: key.code, Peer: key.peer, Count: counts[key], Since: since, Build: j.cfg.Build,
		}
		if err := encodeBody(&body, &rec); err != nil {
			return fmt.Errorf("encode admission: %w", err)
		}
		bodies = append(bodies, body.Bytes())
	}
	written, err := j.refusals.writeAll(ctx, bodies)
	if err == nil {
		return nil
	}
	for _, key := range keys[:written] {
		delete(counts, key)
	}
	j.admissions.giveBack(counts, since)
	return fmt.Errorf("record counts of refused requests: %w", err)
}
