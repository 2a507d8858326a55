package policy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/datadir"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/classify"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

const (
	// followEvery is how often a store that other processes change is looked at.
	followEvery = 400 * time.Millisecond
	// lastGood is for how long what was read last is judged by while the store is away.
	lastGood = 5 * time.Minute
)

// errStale means that the catalogue was not read for too long.
var errStale = errors.New("the store of the catalogue is away for longer than what was read last may be judged by")

// known is what the catalogue knows, as one revision judges by it. It is immutable.
type known struct {
	servers map[string]*catalog.Server
	// versions are those of the changes that made the servers so.
	versions map[string]int64
	sums     map[string][sha256.Size]byte
	// sum identifies all that calls are judged by.
	sum [sha256.Size]byte
}

func newKnown() *known {
	return &known{servers: make(map[string]*catalog.Server), versions: make(map[string]int64), sums: make(map[string][sha256.Size]byte)}
}

// with returns what is known once servers have changed. One that is known newer stays.
func (k *known) with(version int64, settings func(string) catalog.Settings, servers ...*catalog.Server) *known {
	next := &known{servers: maps.Clone(k.servers), versions: maps.Clone(k.versions), sums: maps.Clone(k.sums)}
	for _, s := range servers {
		if next.versions[s.Name] < version {
			next.servers[s.Name], next.versions[s.Name] = s, version
			next.sums[s.Name] = s.Sum(settings(s.Name), classify.Version)
		}
	}
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(next.sums)) {
		sum := next.sums[name]
		_, _ = h.Write(sum[:]) // a hash takes everything
	}
	next.sum = [sha256.Size]byte(h.Sum(nil))
	return next
}

// revisionOf identifies documents and what is known of tools together.
func revisionOf(set *engine.Set, k *known) string {
	sum := sha256.Sum256(append([]byte("sluice.revision.v2 "+set.Revision()+" "), k.sum[:]...))
	return hex.EncodeToString(sum[:])
}

// facts are what is known of a tool with the definition of a digest.
func (s *Service) facts(set *activeSet, server, tool string, digest []byte) engine.Facts {
	return set.known.servers[server].Facts(tool, digest, s.settings(server))
}

// settings are those of a server, also of one that this configuration does not know.
func (s *Service) settings(server string) catalog.Settings {
	if set, ok := s.cfg.Servers[server]; ok {
		return set
	}
	return catalog.Settings{Mode: catalog.FirstUse}
}

// openStore opens the store and reads what it has.
func (s *Service) openStore(ctx context.Context) (err error) {
	at := store.Config{Source: s.cfg.Source, Log: s.deps.Log}
	if s.cfg.Source == sqlstore.SQLite {
		if s.dir, err = datadir.Open(s.cfg.Data, "policy"); err != nil {
			return err
		}
		at.File = s.dir.Path("catalogue.db")
	}
	s.store, err = store.Open(ctx, at)
	return err
}

// follow keeps up with what other processes change, until ctx ends. A store that only this
// process has needs no looking at.
func (s *Service) follow(ctx context.Context) error {
	if s.cfg.Source == sqlstore.SQLite {
		return nil
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := s.catchUp(ctx); err != nil && ctx.Err() == nil {
			s.deps.Log.WarnContext(ctx, "the catalogue could not be read; the last one stays", "error", err)
		}
	}
}

// catchUp reads what has changed in the store. Of many who ask one reads, for all.
func (s *Service) catchUp(ctx context.Context) error {
	read := s.reading.DoChan("", func() (any, error) {
		s.inStore.Lock()
		defer s.inStore.Unlock()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		began := time.Now()
		servers, err := s.readOn(ctx)
		if len(servers) > 0 { // meanwhile others may have published what they changed
			s.publish(ctx, s.version, servers...)
		}
		if err == nil { // and not before it is judged by
			s.heard.Store(&began)
		}
		return nil, err
	})
	select {
	case done := <-read:
		return done.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readOn reads on from what was read last, and returns the servers that have changed. It has one
// caller at a time.
func (s *Service) readOn(ctx context.Context) ([]*catalog.Server, error) {
	version, servers, err := s.store.Since(ctx, s.version, func(name string) bool { return s.settings(name).Trusted })
	if err != nil {
		return nil, fmt.Errorf("read the catalogue: %w", err)
	}
	s.version = version
	return servers, nil
}

// publish judges from now on by servers as changes up to a version have made them; 0 is none.
func (s *Service) publish(ctx context.Context, version int64, servers ...*catalog.Server) {
	if version == 0 {
		return
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	s.put(ctx, s.active.Load().known.with(version, s.settings, servers...))
}

// put puts what is known in place of what was. The lock is held.
func (s *Service) put(ctx context.Context, next *known) {
	old := s.active.Load()
	if next == old.known {
		return
	}
	set := *old
	set.known, set.number = next, old.number+1
	if next.sum != old.known.sum {
		set.revision, set.activated = revisionOf(set.Set, next), later(time.Now(), old.activated)
		s.deps.Log.InfoContext(ctx, "what is known of tools has changed", "revision", set.revision, "before", old.revision)
	}
	s.active.Store(&set)
	s.changes.notify()
}

// fresh refuses to judge by what was read too long ago.
func (s *Service) fresh() error {
	if s.cfg.Source != sqlstore.SQLite && s.age() > lastGood {
		return errStale
	}
	return nil
}

// age is how long ago the store was read last, by the clock that says more of one that goes
// evenly and the wall's, which a machine that has slept sets on.
func (s *Service) age() time.Duration {
	heard, now := s.heard.Load(), time.Now()
	return max(now.Sub(*heard), now.Round(0).Sub(heard.Round(0)))
}
