package journal

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// maxPeers limits how many peers are counted separately for one refusal code in a minute. It limits the number of
	// records that unauthenticated callers can cause, so that these records can't displace the other refusals in the
	// journal.
	maxPeers = 256
	// otherPeers is the name under which the requests of all further peers are counted together.
	otherPeers = "*"
)

// admissions counts requests that were refused before authentication.
type admissions struct {
	mu     sync.Mutex
	since  time.Time
	counts counts
}

// counts maps a code and a peer to the number of refused requests.
type counts map[string]map[string]int64

func (c counts) add(code, peer string, n int64) {
	peers := c[code]
	if peers == nil {
		peers = map[string]int64{}
		c[code] = peers
	}
	if _, known := peers[peer]; !known && len(peers) >= maxPeers {
		peer = otherPeers
	}
	peers[peer] += n
}

// Admission counts a request that was refused before authentication. code is the code of the refusal, and peer is the
// client's address without the port. Admission only counts in memory. Once a minute, and in [Journal.Close], the
// journal writes one record per code and peer. If a code has more than 256 peers in a minute, the requests of all
// further peers are counted together, as the peer "*".
func (j *Journal) Admission(code, peer string) {
	a := &j.admissions
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.counts == nil {
		a.counts, a.since = counts{}, time.Now()
	}
	a.counts.add(code, peer, 1)
}

// reset clears the counts. It returns the previous counts, and the time at which counting began.
func (a *admissions) reset() (counts, time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := a.counts
	a.counts = nil
	return taken, a.since
}

// restore adds unwritten counts back to the current counts.
func (a *admissions) restore(unwritten counts, since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for code, peers := range a.counts {
		for peer, n := range peers {
			unwritten.add(code, peer, n)
		}
	}
	a.counts, a.since = unwritten, since
}

// flushAdmissions writes the counts. Counts that can't be written stay in memory.
func (j *Journal) flushAdmissions(ctx context.Context) error {
	unwritten, since := j.admissions.reset()
	for _, code := range slices.Sorted(maps.Keys(unwritten)) {
		if err := j.flushPeers(ctx, code, unwritten[code], since); err != nil {
			j.admissions.restore(unwritten, since)
			return fmt.Errorf("record counts of refused requests: %w", err)
		}
	}
	return nil
}

// flushPeers writes the counts for one refusal code, and deletes the written counts from peers.
func (j *Journal) flushPeers(ctx context.Context, code string, peers map[string]int64, since time.Time) error {
	names := slices.Sorted(maps.Keys(peers))
	items := make([]item, 0, len(names))
	for _, peer := range names {
		var body bytes.Buffer
		rec := Record{Kind: KindAdmission, Code: code, Peer: peer, Count: peers[peer], Since: since, Build: j.cfg.Build}
		if err := encodeBody(&body, &rec); err != nil {
			return fmt.Errorf("encode admission: %w", err)
		}
		items = append(items, item{body: body.Bytes()})
	}
	written, err := j.refusals.writeAll(ctx, items)
	for _, peer := range names[:written] {
		delete(peers, peer)
	}
	return err
}
