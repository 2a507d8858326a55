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
	// maxCacheBytes limits the total size, in bytes, of the cached agents that no call is using.
	maxCacheBytes = 256 << 20
	loadTimeout   = 30 * time.Second
)

// agentCache caches agents in memory. It contains the agents that calls are using or have used recently, with at most
// one current instance of each agent. It is safe for concurrent use.
type agentCache struct {
	store *store.Store
	open  func(ctx context.Context, row *store.Row) (*agent.Agent, error)
	loads singleflight.Group

	mu     sync.Mutex
	agents map[string]weak.Pointer[agent.Agent]
	// recent keeps recently used agents in memory even if no call is using them. recentBytes is the total size of these
	// agents, in bytes.
	recent      *simplelru.LRU[string, cachedAgent]
	recentBytes int
}

// cachedAgent is an agent together with the size in bytes that touch has recorded last.
type cachedAgent struct {
	*agent.Agent
	size int
}

func newAgentCache(db *store.Store, open func(context.Context, *store.Row) (*agent.Agent, error)) *agentCache {
	recent, _ := simplelru.NewLRU[string, cachedAgent](math.MaxInt, nil) // fails only for sizes below 1
	return &agentCache{store: db, open: open, agents: make(map[string]weak.Pointer[agent.Agent]), recent: recent}
}

// lookup returns the agent with the given id, or nil if the agent is not in memory.
func (s *agentCache) lookup(id string) *agent.Agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agents[id].Value()
}

// get returns the agent with the given id. If the agent is not cached, or if the cached agent is out of date, get loads
// the agent from the store. It returns the store's errors.
func (s *agentCache) get(ctx context.Context, id string) (*agent.Agent, error) {
	if a := s.lookup(id); a != nil && !a.IsStale() {
		current, err := s.isCurrent(ctx, a)
		if err != nil {
			return nil, err
		}
		if current {
			s.touch(a)
			return a, nil
		}
	}
	read, err, _ := s.loads.Do(id, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout) // other callers wait for the same load
		defer cancel()
		row, err := s.store.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		if a := s.lookup(id); a != nil && !a.IsStale() && a.Version() >= row.Version && a.RunsElsewhere() == row.HeldElsewhere {
			return a, nil
		}
		a, err := s.open(ctx, row)
		if errors.Is(err, store.ErrStateLost) { // the state may have been replaced after the row was read
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

// isCurrent reports whether a cached agent is up to date. It may be out of date because another process has stored a
// newer version.
func (s *agentCache) isCurrent(ctx context.Context, a *agent.Agent) (bool, error) {
	if a.RunsElsewhere() { // the process that ran the agent's turn may have ended
		return false, nil
	}
	if !s.store.IsShared || a.HasTurn() {
		return true, nil
	}
	version, err := s.store.Version(ctx, a.ID)
	return version <= a.Version(), err
}

// put adds an agent to the cache and replaces an older instance of the same agent. Calls that still use the older
// instance can no longer store changes to it.
func (s *agentCache) put(a *agent.Agent) {
	s.mu.Lock()
	s.agents[a.ID] = weak.Make(a)
	s.mu.Unlock()
	s.touch(a)
}

// add adds a new agent to the cache, unless another call has already loaded the agent.
func (s *agentCache) add(a *agent.Agent) {
	if s.lookup(a.ID) == nil {
		s.put(a)
	}
}

// touch marks an agent as recently used and updates the recorded size.
func (s *agentCache) touch(a *agent.Agent) {
	size := a.Size()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.agents[a.ID].Value() != a {
		return
	}
	if old, ok := s.recent.Get(a.ID); ok {
		s.recentBytes -= old.size
	}
	s.recent.Add(a.ID, cachedAgent{a, size})
	s.recentBytes += size
	for s.recentBytes > maxCacheBytes && s.recent.Len() > 1 {
		_, oldest, _ := s.recent.RemoveOldest()
		s.recentBytes -= oldest.size
	}
}

func (s *agentCache) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.recent.Get(id); ok {
		s.recentBytes -= old.size
		s.recent.Remove(id)
	}
	delete(s.agents, id)
}

func (s *agentCache) withTurns() (out []*agent.Agent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, p := range s.agents {
		switch a := p.Value(); {
		case a == nil:
			delete(s.agents, id)
		case a.HasTurn():
			out = append(out, a)
		}
	}
	return out
}
