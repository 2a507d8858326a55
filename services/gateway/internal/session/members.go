package session

import (
	"maps"
	"sync"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/news"
)

// Members are the sessions of a hub, one with each server that its client has used. It is safe for
// concurrent use; its fields do not change.
type Members struct {
	// Abilities are what the client says it can do, whatever policy lets servers know of it.
	Abilities []mcp.Ability
	// Opened has news when a server has opened one.
	Opened news.News

	making sync.Mutex // held while one is made

	mu sync.Mutex
	by map[string]string // handles, by server
	// listed is what the client has been told of the servers' lists, and shown the digests of the
	// definitions of their tools that it was shown.
	listed string
	shown  map[string]func(tool string) []byte
}

// Use uses the member with a server, by its handle. Where there is none that can be used, makes makes
// one; nobody makes another meanwhile.
func (m *Members) Use(server string, use func(id string) error, makes func() (id string, err error)) error {
	if id, known := m.of(server); known && use(id) == nil {
		return nil
	}
	m.making.Lock()
	defer m.making.Unlock()
	if id, known := m.of(server); known && use(id) == nil { // somebody else has made it
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

func (m *Members) of(server string) (id string, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, known = m.by[server]
	return id, known
}

// Show notes the digests of the definitions of a server's tools that the client was shown.
func (m *Members) Show(server string, digest func(tool string) []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shown == nil {
		m.shown = make(map[string]func(string) []byte)
	}
	m.shown[server] = digest
}

// Shown is the digest of the definition of a server's tool that the client was shown last; nil where
// it was shown none.
func (m *Members) Shown(server, tool string) []byte {
	m.mu.Lock()
	digest := m.shown[server]
	m.mu.Unlock()
	if digest == nil {
		return nil
	}
	return digest(tool)
}

// All returns the handles, by server.
func (m *Members) All() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.by)
}

// Relists changes the state of the servers' lists of which the client has been told.
func (m *Members) Relists(change func(state string) string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listed = change(m.listed)
}

// Lists notes of which state of the servers' lists the client has been told, as a text that another
// state does not have, and returns the one before; empty for none.
func (m *Members) Lists(state string) (before string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, m.listed = m.listed, state
	return before
}
