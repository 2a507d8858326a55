package issuerkeys

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

const (
	// renewAfter is how long keys are used before they are fetched again.
	renewAfter = 10 * time.Minute
	// maxAge is how long keys are used if they can't be fetched again.
	maxAge = 24 * time.Hour
	// minPause is the minimum time between two fetches that are caused by unknown keys. It is also the maximum pause after
	// a failed fetch.
	minPause = 30 * time.Second
	// firstPause is half of the pause after the first failed fetch. Each further failure doubles the pause up to minPause.
	firstPause = time.Second
	// interval is the interval at which the book checks which keys have to be fetched.
	interval = time.Second
)

// Status is the state of an issuer's keys.
type Status struct {
	// Keys contains the fetched keys. It is empty if the keys have never been fetched, or are too old.
	Keys []*identityv1.IssuerKey
	// Fetched is the time of the last successful fetch, or zero.
	Fetched time.Time
	// Problem is the error of the last fetch, or nil.
	Problem error
}

// Book contains the keys of issuers, and fetches them. Create it with [NewBook]. It is safe for concurrent use.
type Book struct {
	fetch   func(context.Context, Source) ([]*identityv1.IssuerKey, error)
	changed func()

	mu      sync.Mutex
	issuers map[Source]*entry
}

// entry is the state of one issuer.
type entry struct {
	Status
	// tried is the time at which the last fetch began. pause is the time from the start of a failed fetch to the start of
	// the next fetch.
	tried time.Time
	pause time.Duration
	// requested is the start time of the last fetch that was caused by an unknown key.
	requested time.Time
	// fetching is closed when the current fetch ends. It is nil if no fetch is in progress.
	fetching chan struct{}
}

// NewBook returns a book without issuers. The book fetches keys with fetch, which behaves as [Fetch], and calls changed
// after the keys of an issuer have changed.
func NewBook(fetch func(context.Context, Source) ([]*identityv1.IssuerKey, error), changed func()) *Book {
	return &Book{fetch: fetch, changed: changed, issuers: make(map[Source]*entry)}
}

// Use replaces the issuers. The book keeps the keys of issuers that it already contains.
func (b *Book) Use(sources []Source) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for of := range b.issuers {
		if !slices.Contains(sources, of) {
			delete(b.issuers, of)
		}
	}
	for _, of := range sources {
		if b.issuers[of] == nil {
			b.issuers[of] = &entry{pause: firstPause}
		}
	}
}

// Restore sets keys of an issuer that were fetched earlier, for example before a restart. It ignores keys that are too
// old, and does nothing if the book has fetched the issuer's keys itself.
func (b *Book) Restore(of Source, keys []*identityv1.IssuerKey, fetched time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.issuers[of]; e != nil && e.Fetched.IsZero() && time.Since(fetched) < maxAge {
		e.Status = Status{Keys: keys, Fetched: fetched}
	}
}

// Status returns the state of an issuer's keys.
func (b *Book) Status(of Source) Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.issuers[of]; e != nil {
		return e.Status
	}
	return Status{}
}

// Run fetches keys when they are due, until ctx is done.
func (b *Book) Run(ctx context.Context) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		for _, of := range b.due(time.Now()) {
			go b.renew(ctx, of)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// due returns the issuers whose keys have to be fetched now, and removes keys that are too old.
func (b *Book) due(now time.Time) []Source {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []Source
	for of, e := range b.issuers {
		if len(e.Keys) > 0 && now.Sub(e.Fetched) > maxAge {
			e.Keys = nil
			go b.changed()
		}
		wait := renewAfter
		if e.Problem != nil || e.tried.IsZero() {
			wait = e.pause
		}
		if e.fetching == nil && (e.tried.IsZero() || now.Sub(e.tried) >= wait) {
			out = append(out, of)
		}
	}
	return out
}

// Refetch fetches the keys of an issuer again because a JWT has an unknown key, and returns the keys. It does not fetch
// again within 30 s, because callers without a credential could otherwise make the mesh send many requests. If a fetch
// is already in progress, Refetch first waits until that fetch has ended or ctx is done.
func (b *Book) Refetch(ctx context.Context, of Source) []*identityv1.IssuerKey {
	for ctx.Err() == nil {
		b.mu.Lock()
		e := b.issuers[of]
		switch {
		case e == nil:
			b.mu.Unlock()
			return nil
		case e.fetching != nil:
			running := e.fetching
			b.mu.Unlock()
			select {
			case <-running: // the fetch may have begun before the issuer changed its keys, so the loop fetches once more
			case <-ctx.Done():
			}
		case time.Since(e.requested) < minPause:
			b.mu.Unlock()
			return b.Status(of).Keys
		default:
			e.requested = time.Now()
			e.begin()
			b.mu.Unlock()
			b.finish(context.WithoutCancel(ctx), of, e)
			return b.Status(of).Keys
		}
	}
	return b.Status(of).Keys
}

// renew fetches the keys of an issuer, unless a fetch is already in progress.
func (b *Book) renew(ctx context.Context, of Source) {
	b.mu.Lock()
	e := b.issuers[of]
	if e == nil || e.fetching != nil {
		b.mu.Unlock()
		return
	}
	e.begin()
	b.mu.Unlock()
	b.finish(ctx, of, e)
}

// begin records that a fetch begins. The caller must hold the lock of the book, and must then call [Book.finish].
func (e *entry) begin() { e.fetching, e.tried = make(chan struct{}), time.Now() }

// finish fetches the keys of an issuer after [entry.begin].
func (b *Book) finish(ctx context.Context, of Source, e *entry) {
	keys, err := b.fetch(ctx, of)
	b.mu.Lock()
	isNew := err == nil && !sameKeys(e.Keys, keys)
	if err == nil {
		e.Status, e.pause = Status{Keys: keys, Fetched: time.Now()}, firstPause
	} else {
		e.Problem, e.pause = err, min(2*e.pause, minPause)
	}
	ended := e.fetching
	e.fetching = nil
	b.mu.Unlock()
	if isNew {
		b.changed()
	}
	close(ended)
}

func sameKeys(a, b []*identityv1.IssuerKey) bool {
	return slices.EqualFunc(a, b, func(x, y *identityv1.IssuerKey) bool { return proto.Equal(x, y) })
}
