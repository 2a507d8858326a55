package identity

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

const (
	// heartbeatInterval is the interval at which a watcher receives a message even if nothing has changed. It is shorter
	// than the 500 ms that the API documentation promises.
	heartbeatInterval = 400 * time.Millisecond
	// confirmTimeout is how long a watcher that has not acknowledged a new set may still use the previous set. A watcher
	// accepts no token later than 1 s after the last message. It also refuses a message that arrives later than 1 s after
	// the message before it.
	confirmTimeout = 2100 * time.Millisecond
	// startMargin is how long a call that started before a revocation may take to reach its server. A revocation waits
	// this long before it returns, so that no such call reaches a server later.
	startMargin = 200 * time.Millisecond
	// replicaTimeout is how long a revocation waits for other replicas. replicaPoll is the interval at which the
	// revocation reads from the store which versions the replicas use.
	replicaTimeout = 2500 * time.Millisecond
	replicaPoll    = 100 * time.Millisecond
)

// watchers contains the services that receive the tokens. The zero value has no watchers. It is safe for concurrent
// use.
type watchers struct {
	mu   sync.Mutex
	byID map[string]*watcher
	// acknowledged is closed when a watcher has acknowledged a set or has left. It is nil if no goroutine is waiting.
	acknowledged chan struct{}
}

// watcher is a service that receives the tokens. version is the version of the newest set that the watcher has
// acknowledged.
type watcher struct{ version uint64 }

// add adds a watcher. The caller must call the returned function when the watcher's stream ends. The function removes
// the watcher after confirmTimeout, because the watcher may use its last set until then.
func (w *watchers) add() (id string, remove func()) {
	id = rand.Text()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byID == nil {
		w.byID = make(map[string]*watcher)
	}
	w.byID[id] = new(watcher)
	return id, func() {
		time.AfterFunc(confirmTimeout, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.byID, id)
			w.notify()
		})
	}
}

// acknowledge records that a watcher uses a set. It ignores unknown watchers.
func (w *watchers) acknowledge(id string, version uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known := w.byID[id]; known != nil && version > known.version {
		known.version = version
		w.notify()
	}
}

// notify wakes the goroutines that wait for an acknowledgement. The caller must hold w.mu.
func (w *watchers) notify() {
	if w.acknowledged != nil {
		close(w.acknowledged)
		w.acknowledged = nil
	}
}

// allUse reports whether all watchers have acknowledged a version. changed is closed when a watcher next acknowledges a
// set or is removed.
func (w *watchers) allUse(version uint64) (all bool, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all = true
	for _, known := range w.byID {
		all = all && known.version >= version
	}
	if w.acknowledged == nil {
		w.acknowledged = make(chan struct{})
	}
	return all, w.acknowledged
}

// WatchTokens implements identityv1.IdentityServiceServer.
func (s *Service) WatchTokens(_ *identityv1.WatchTokensRequest, stream grpc.ServerStreamingServer[identityv1.WatchTokensResponse]) error {
	id, remove := s.watchers.add()
	defer remove()
	tick := time.NewTicker(heartbeatInterval)
	defer tick.Stop()
	var sent *publishedSet
	for {
		changed := s.tokens.changes.Wait()
		if now := s.tokens.published.Load(); now != nil && s.isFresh() { // without messages, the watcher soon accepts no token
			resp := &identityv1.WatchTokensResponse{Watcher: id, Version: now.version}
			if now != sent {
				resp.Set, sent = now.TokenSet, now
			}
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-changed:
		case <-tick.C:
		}
	}
}

// AcknowledgeTokens implements identityv1.IdentityServiceServer.
func (s *Service) AcknowledgeTokens(_ context.Context, req *identityv1.AcknowledgeTokensRequest) (*identityv1.AcknowledgeTokensResponse, error) {
	s.watchers.acknowledge(req.GetWatcher(), req.GetVersion())
	return new(identityv1.AcknowledgeTokensResponse), nil
}

// awaitWatchers waits until all watchers use the given set or a newer one. It stops waiting when confirmTimeout has
// passed since the set was published, because no watcher can use an older set after that. Shortly after the start of
// this process, watchers of the previous process may still use older sets. Therefore, if other services run in separate
// processes, awaitWatchers always waits for confirmTimeout in this period. awaitWatchers returns an error only if ctx
// is done.
func (s *Service) awaitWatchers(ctx context.Context, set *publishedSet) error {
	timer := time.NewTimer(time.Until(set.at.Add(confirmTimeout)))
	defer timer.Stop()
	if s.cfg.Apart && time.Since(s.began) < confirmTimeout {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		}
	}
	for {
		all, changed := s.watchers.allUse(set.version)
		if all {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-timer.C:
			return nil
		}
	}
}

// confirm keeps the field confirmed of [Service] up to date until ctx is done.
func (s *Service) confirm(ctx context.Context) error {
	for {
		changed := s.tokens.changes.Wait()
		if set := s.tokens.published.Load(); set.stored != s.confirmed.Load() {
			if s.awaitWatchers(ctx, set) == nil {
				s.confirmed.Store(set.stored)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// awaitConfirmation waits until all services use the given version of the stored tokens or a newer one. It returns the
// number of replicas that have not confirmed this in time. Such a replica has lost its connection to the store. It
// stops confirming tokens when its last read of the store is older than [Config.MaxStoreAge].
func (s *Service) awaitConfirmation(ctx context.Context, version int64) (unconfirmed int32, err error) {
	if err := s.awaitWatchers(ctx, s.tokens.published.Load()); err != nil {
		return 0, err
	}
	if s.cfg.Source != sqlstore.SQLite {
		if unconfirmed, err = s.awaitReplicas(ctx, version); err != nil {
			return 0, tokenStatus(err)
		}
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(startMargin):
		return unconfirmed, nil
	}
}

// awaitReplicas waits until the other replicas have confirmed a version of the stored tokens, but not longer than
// replicaTimeout. It returns the number of replicas that have not confirmed the version.
func (s *Service) awaitReplicas(ctx context.Context, version int64) (unconfirmed int32, err error) {
	ending, cancel := context.WithTimeout(ctx, replicaTimeout)
	defer cancel()
	tick := time.NewTicker(replicaPoll)
	defer tick.Stop()
	for asked := false; ; {
		// A replica that can't read the store confirms tokens until its last read is too old. Its watchers accept these
		// tokens for up to confirmTimeout after that.
		older, err := s.store.OlderReplicas(ending, version, s.maxStoreAge()+confirmTimeout)
		if err == nil {
			asked = true
			unconfirmed = int32(len(slices.DeleteFunc(older, func(id string) bool { return id == s.replica })))
		}
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case ending.Err() != nil && asked:
			return unconfirmed, nil
		case err != nil:
			return 0, err
		case unconfirmed == 0:
			return 0, nil
		}
		select {
		case <-ending.Done():
		case <-tick.C:
		}
	}
}
