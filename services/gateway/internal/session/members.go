package session

import (
	"maps"
	"sync"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// Members are the sessions that one with many servers has, with each server that its client has used.
// They end with it. It is safe for concurrent use; its fields do not change.
type Members struct {
	// Abilities are what the client says it can do, whatever policy lets servers know of it.
	Abilities []mcp.Ability

	making sync.Mutex // held while one is made

	mu   sync.Mutex
	by   map[string]string
	news chan struct{}
}

// Of returns the handle of the session with a server, which [Store.Use] may know no longer. Where it
// does not, makes is to open one that takes its place; nobody makes another meanwhile.
func (m *Members) Of(server string, use func(id string) error, makes func() (id string, err error)) error {
	m.making.Lock()
	defer m.making.Unlock()
	if id, known := m.All()[server]; known && use(id) == nil {
		return nil
	}
	id, err := makes()
	if err != nil {
		return err
	}
	m.mu.Lock()
	if m.by == nil {
		m.by = make(map[string]string)
	}
	m.by[server] = id
	m.mu.Unlock()
	return use(id)
}

// All returns the handles, by server.
func (m *Members) All() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.by)
}

// News ends once [Members.Tell] is called.
func (m *Members) News() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.news == nil {
		m.news = make(chan struct{})
	}
	return m.news
}

// Tell says that a server has opened a session.
func (m *Members) Tell() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.news != nil {
		close(m.news)
		m.news = nil
	}
}
