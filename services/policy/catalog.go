package policy

import (
	"cmp"
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
	// pollInterval is the interval at which the store is read if other processes can change it.
	pollInterval = 400 * time.Millisecond
	// defaultMaxStoreAge is used if [Config.MaxStoreAge] is zero.
	defaultMaxStoreAge = 5 * time.Minute
)

var errStale = errors.New("the policy service's store has been unavailable for too long: calls are refused because the policy, the catalog and the stops may be out of date")

// catalogSnapshot is an immutable state of the catalog.
type catalogSnapshot struct {
	servers map[string]*catalog.Server
	// versions contains the catalog version in which each server last changed.
	versions map[string]int64
	// sums contains a digest of each server's properties that affect decisions.
	sums map[string][sha256.Size]byte
	sum  [sha256.Size]byte
}

func newCatalogSnapshot() *catalogSnapshot {
	return &catalogSnapshot{servers: make(map[string]*catalog.Server), versions: make(map[string]int64), sums: make(map[string][sha256.Size]byte)}
}

// with returns a copy of the snapshot that contains the given servers, as they are in the given catalog version. A
// server is not replaced if the snapshot already contains it in this version or a newer one.
func (k *catalogSnapshot) with(version int64, settings func(string) catalog.Settings, servers ...*catalog.Server) *catalogSnapshot {
	next := &catalogSnapshot{servers: maps.Clone(k.servers), versions: maps.Clone(k.versions), sums: maps.Clone(k.sums)}
	for _, s := range servers {
		if next.versions[s.Name] < version {
			next.servers[s.Name], next.versions[s.Name] = s, version
			next.sums[s.Name] = s.Sum(settings(s.Name), classify.Version)
		}
	}
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(next.sums)) {
		sum := next.sums[name]
		_, _ = h.Write(sum[:]) // Write never returns an error
	}
	next.sum = [sha256.Size]byte(h.Sum(nil))
	return next
}

func revisionOf(set *engine.Set, k *catalogSnapshot) string {
	form := append([]byte("sluice.revision.v2 "+set.Revision()+" "), k.sum[:]...)
	if stops := set.Stops().Sum(); stops != (engine.Stops{}).Sum() { // if there are no stops, the revision is the same as in earlier releases
		form = append(append(form, " stops "...), stops[:]...)
	}
	sum := sha256.Sum256(form)
	return hex.EncodeToString(sum[:])
}

func (s *Service) facts(set *activeSet, server, tool string, digest []byte) engine.Facts {
	return set.catalog.servers[server].Facts(tool, digest, s.settings(server))
}

// settings returns the configured settings of a server, or the default settings if the server is not configured.
func (s *Service) settings(server string) catalog.Settings {
	if set, ok := s.cfg.Servers[server]; ok {
		return set
	}
	return catalog.Settings{Mode: catalog.FirstUse}
}

// openStore opens the store. If the store is SQLite, openStore also opens the data directory.
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

// follow keeps reading the changes that other processes make in the store, until ctx is cancelled. If no other process
// can use the store, follow returns immediately.
func (s *Service) follow(ctx context.Context) error {
	if s.cfg.Source == sqlstore.SQLite {
		return nil
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := s.catchUp(ctx); err != nil && ctx.Err() == nil {
			s.deps.Log.WarnContext(ctx, "the store could not be read; the state that was read last stays in use", "error", err)
		}
	}
}

// catchUp reads the changes in the store. Concurrent calls share one read.
func (s *Service) catchUp(ctx context.Context) error {
	read := s.reading.DoChan("", func() (any, error) {
		s.inStore.Lock()
		defer s.inStore.Unlock()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		began := time.Now()
		servers, err := s.readChanges(ctx)
		if len(servers) > 0 {
			s.publish(ctx, s.version, servers...)
		}
		if err == nil {
			err = s.readStops(ctx)
		}
		if err == nil {
			err = s.readRevision(ctx)
		}
		if err == nil { // lastRead is set last, so that all changes that were read are already in use
			s.lastRead.Store(&began)
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

// readChanges returns the servers that have changed in the store since the previous read. It must not be called
// concurrently.
func (s *Service) readChanges(ctx context.Context) ([]*catalog.Server, error) {
	version, servers, err := s.store.ChangedSince(ctx, s.version, func(name string) bool { return s.settings(name).Trusted })
	if err != nil {
		return nil, fmt.Errorf("read the catalog: %w", err)
	}
	s.version = version
	return servers, nil
}

// publish puts the given servers into the active catalog, as they are in the given catalog version. It does nothing if
// the version is 0.
func (s *Service) publish(ctx context.Context, version int64, servers ...*catalog.Server) {
	if version == 0 {
		return
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	s.replaceCatalog(ctx, s.active.Load().catalog.with(version, s.settings, servers...))
}

// replaceCatalog replaces the active catalog. The caller must hold s.changing.
func (s *Service) replaceCatalog(ctx context.Context, next *catalogSnapshot) {
	old := s.active.Load()
	if next == old.catalog {
		return
	}
	set := *old
	set.catalog, set.number = next, old.number+1
	if next.sum != old.catalog.sum {
		set.revision, set.activated = revisionOf(set.Set, next), later(time.Now(), old.activated)
		s.deps.Log.InfoContext(ctx, "the catalog has changed", "revision", set.revision, "before", old.revision)
	}
	s.active.Store(&set)
	s.changes.Notify()
}

// checkFresh returns [errStale] if the last read of the store was more than [Config.MaxStoreAge] ago.
func (s *Service) checkFresh() error {
	if s.cfg.Source != sqlstore.SQLite && s.catalogAge() > cmp.Or(s.cfg.MaxStoreAge, defaultMaxStoreAge) {
		return errStale
	}
	return nil
}

// catalogAge returns the time since the last read of the store. It returns the longer of the times by the monotonic
// clock and by the wall clock, because the monotonic clock can stop while the machine sleeps.
func (s *Service) catalogAge() time.Duration {
	read, now := s.lastRead.Load(), time.Now()
	return max(now.Sub(*read), now.Round(0).Sub(read.Round(0)))
}
