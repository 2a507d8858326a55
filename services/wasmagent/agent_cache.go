package wasmagent

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"
	"weak"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/singleflight"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

const (
	// maxShelf bounds the total size of the agents that stay in memory while no call uses them, in bytes.
	maxShelf = 256 << 20
	// openTime is the time limit for loading an agent.
	openTime = 30 * time.Second
)

// shelf caches agents in memory: the agents that calls use now, and those that calls used recently. It has at most one
// current instance of each agent. It is safe for concurrent use.
type shelf struct {
	store *store.Store
	open  func(ctx context.Context, row *store.Row) (*agent.Agent, error)
	reads singleflight.Group

	mu  sync.Mutex
	all map[string]weak.Pointer[agent.Agent]
	// recent holds the agents that stay in memory without a user, and bytes is their total size.
	recent *simplelru.LRU[string, onShelf]
	bytes  int
}

// onShelf is an agent with its size in bytes when it was added.
type onShelf struct {
	*agent.Agent
	bytes int
}

func newShelf(kept *store.Store, open func(context.Context, *store.Row) (*agent.Agent, error)) *shelf {
	recent, _ := simplelru.NewLRU[string, onShelf](math.MaxInt, nil) // fails only for sizes below 1
	return &shelf{store: kept, open: open, all: make(map[string]weak.Pointer[agent.Agent]), recent: recent}
}

// here returns the agent with this id if it is in memory, otherwise nil.
func (s *shelf) here(id string) *agent.Agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id].Value()
}

// get returns the agent with this id. It loads the agent unless memory has the stored version. Errors: the store's.
func (s *shelf) get(ctx context.Context, id string) (*agent.Agent, error) {
	if a := s.here(id); a != nil && !a.IsLost() {
		fresh, err := s.isFresh(ctx, a)
		if err != nil {
			return nil, err
		}
		if fresh {
			s.touch(a)
			return a, nil
		}
	}
	read, err, _ := s.reads.Do(id, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), openTime) // other callers wait for the same read
		defer cancel()
		row, err := s.store.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		if a := s.here(id); a != nil && !a.IsLost() && a.Version() >= row.Version && a.IsElsewhere() == row.Held {
			return a, nil
		}
		a, err := s.open(ctx, row)
		if errors.Is(err, store.ErrState) { // the state may have been replaced after the row was read
			if row, err = s.store.Get(ctx, id); err == nil {
				a, err = s.open(ctx, row)
			}
		}
		if err != nil {
			return nil, err
		}
		s.put(a)
		return a, nil
	})
	if err != nil {
		return nil, err
	}
	a, _ := read.(*agent.Agent)
	return a, nil
}

// isFresh reports whether an agent in memory is the stored version. Other processes may have stored a newer one.
func (s *shelf) isFresh(ctx context.Context, a *agent.Agent) (bool, error) {
	if a.IsElsewhere() { // the process that ran its turn may have ended
		return false, nil
	}
	if !s.store.Shared || a.Works() {
		return true, nil
	}
	version, err := s.store.Version(ctx, a.ID)
	return version <= a.Version(), err
}

// put adds an agent. An older instance of the same agent, which a call may still use, can't store changes any more.
func (s *shelf) put(a *agent.Agent) {
	s.mu.Lock()
	s.all[a.ID] = weak.Make(a)
	s.mu.Unlock()
	s.touch(a)
}

// add adds a newly created agent, unless another call has already loaded it.
func (s *shelf) add(a *agent.Agent) {
	if s.here(a.ID) == nil {
		s.put(a)
	}
}

// touch marks an agent as recently used and updates its size.
func (s *shelf) touch(a *agent.Agent) {
	size := a.Size()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[a.ID].Value() != a {
		return
	}
	if old, ok := s.recent.Get(a.ID); ok {
		s.bytes -= old.bytes
	}
	s.recent.Add(a.ID, onShelf{a, size})
	s.bytes += size
	for s.bytes > maxShelf && s.recent.Len() > 1 {
		_, oldest, _ := s.recent.RemoveOldest()
		s.bytes -= oldest.bytes
	}
}

func (s *shelf) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.recent.Get(id); ok {
		s.bytes -= old.bytes
		s.recent.Remove(id)
	}
	delete(s.all, id)
}

// working returns the agents whose turns run in this process.
func (s *shelf) working() (out []*agent.Agent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, p := range s.all {
		switch a := p.Value(); {
		case a == nil:
			delete(s.all, id)
		case a.Works():
			out = append(out, a)
		}
	}
	return out
}
