package dispatch

import (
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// Addressing implements the behavior that depends on whether the client connects to the URL of one server ([Direct]) or
// to the URL for all servers (package allservers).
type Addressing interface {
	// IsShared reports whether the client connects to the URL for all servers.
	IsShared() bool
	// ClientID translates a server's request id or progress token for the client. raw and the result are raw JSON.
	ClientID(raw []byte) []byte
	// Rename returns the edits that replace the server's names with the client's names in a message from the server. The
	// returned edits do not overlap with others, which are other edits of the same message. Rename may wait for one of the
	// caller's time slices for processing. The calling goroutine must not hold a time slice already.
	Rename(method string, raw []byte, others []jsonrpc.Edit) ([]jsonrpc.Edit, error)
	// RenameRequest returns the edits that replace the server's names with the client's names in a request from the
	// server.
	RenameRequest(req upstream.Request) ([]jsonrpc.Edit, error)
	// Event translates an event on the server's stream into an event for the client's stream.
	Event(upstream.Event) upstream.Event
	// Forwards reports whether a notification with this method may be forwarded from the server to the client. If not, the
	// gateway sends such notifications itself.
	Forwards(notification string) bool
	// IsSubscribed reports whether m belongs to the subscription on whose stream it has arrived.
	IsSubscribed(m *jsonrpc.Answer) bool
	// ListedDigest returns the digest of a tool's definition in the list that the session has received. It returns nil if
	// that list does not contain the tool.
	ListedDigest(tool string) []byte
	// Resumable returns the session in which the client can resume the stream of an answer, or nil if this is not
	// possible.
	Resumable(own *session.Session) *session.Session
}

// Direct is the [Addressing] for the URL of a single server.
type Direct struct{ *Exchange }

// IsShared implements [Addressing].
func (Direct) IsShared() bool { return false }

// ClientID implements [Addressing].
func (Direct) ClientID(raw []byte) []byte { return raw }

// Rename implements [Addressing].
func (Direct) Rename(string, []byte, []jsonrpc.Edit) ([]jsonrpc.Edit, error) { return nil, nil }

// RenameRequest implements [Addressing].
func (Direct) RenameRequest(upstream.Request) ([]jsonrpc.Edit, error) { return nil, nil }

// Event implements [Addressing].
func (Direct) Event(e upstream.Event) upstream.Event { return e }

// Forwards implements [Addressing].
func (Direct) Forwards(string) bool { return true }

// IsSubscribed implements [Addressing].
func (Direct) IsSubscribed(*jsonrpc.Answer) bool { return true }

// ListedDigest implements [Addressing].
func (x Direct) ListedDigest(tool string) []byte { return x.Session.Definitions.Digest(tool) }

// Resumable implements [Addressing].
func (Direct) Resumable(own *session.Session) *session.Session { return own }
