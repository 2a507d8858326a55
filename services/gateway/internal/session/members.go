package session

import (
	"maps"
	"sync"

	"github.com/sluice-mesh/sluice/services/gateway/internal/broadcast"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// Members contains the member sessions of an aggregate session. There is one member session for each server that the
// client has used. It is safe for concurrent use. The exported fields must not be changed.
type Members struct {
	// Abilities are the capabilities that the client declares, including capabilities that the gateway does not declare to
	// servers because the policy denies them.
	Abilities []mcp.Ability
	// Opened notifies its waiters when a member session is opened.
	Opened broadcast.Broadcaster

	opening sync.Mutex // held while a member session is being opened

	mu  sync.Mutex
	ids map[string]string // maps a server to the id of its member session
	// listState is the state of the servers' lists at the last notification to the client. The gateway compares it with
	// the current state to find out which lists have changed. shownDigests contains one function for each server. The
	// function returns the digest of the tool definition that the client has received last.
	listState    string
	shownDigests map[string]func(tool string) []byte
}

// UseMember calls use with the id of the server's member session. If there is no member session, or if use returns an
// error, UseMember calls create to create a member session, and then calls use with the new id. Only one goroutine at a
// time opens a member session.
func (m *Members) UseMember(server string, use func(id string) error, create func() (id string, err error)) error {
	if id, known := m.idOf(server); known && use(id) == nil {
		return nil
	}
	m.opening.Lock()
	defer m.opening.Unlock()
	// Another goroutine might have opened the session while this goroutine was waiting for the lock.
	if id, known := m.idOf(server); known && use(id) == nil {
		return nil
	}
	id, err := create()
	if err != nil {
		return err
	}
	m.mu.Lock()
	if m.ids == nil {
		m.ids = make(map[string]string)
	}
	m.ids[server] = id
	m.mu.Unlock()
	return use(id)
}

func (m *Members) idOf(server string) (id string, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, known = m.ids[server]
	return id, known
}

// SetShown records which tool definitions of a server the client has received. The given function returns the digest of
// a tool's definition.
func (m *Members) SetShown(server string, digest func(tool string) []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shownDigests == nil {
		m.shownDigests = make(map[string]func(string) []byte)
	}
	m.shownDigests[server] = digest
}

// ShownDigest returns the digest of the tool's definition that the client has received last. It returns nil if the
// client has received no definition of the tool.
func (m *Members) ShownDigest(server, tool string) []byte {
	m.mu.Lock()
	digest := m.shownDigests[server]
	m.mu.Unlock()
	if digest == nil {
		return nil
	}
	return digest(tool)
}

// IDs returns the ids of the member sessions, by server.
func (m *Members) IDs() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.ids)
}

// UpdateListState replaces the recorded state of the servers' lists with the result of the given function. The recorded
// state is the state at the last notification to the client.
func (m *Members) UpdateListState(change func(state string) string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listState = change(m.listState)
}

// SetListState records a new state of the servers' lists. It returns the previous state, or "" if there was none.
func (m *Members) SetListState(state string) (before string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, m.listState = m.listState, state
	return before
}
