package dispatch

import (
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// Addressing is how a client addresses the server of a message: at a URL of its own ([Direct]), or as one of many
// servers at one URL (package aggregate).
type Addressing interface {
	// IsShared reports whether other servers answer at the same URL.
	IsShared() bool
	// ClientID returns the id or progress token of a server as the client reads it. Both are raw JSON.
	ClientID(raw []byte) []byte
	// Rename returns the edits that replace the server's names by the names that the client knows, in a message from
	// the server. No edit overlaps the edits in others, which are also made to the message.
	Rename(method string, raw []byte, others []jsonrpc.Edit) ([]jsonrpc.Edit, error)
	// RenameRequest returns the same for a request from the server.
	RenameRequest(req upstream.Request) ([]jsonrpc.Edit, error)
	// Event returns the event to send on the client's stream for an event of the server's stream.
	Event(upstream.Event) upstream.Event
	// Forwards reports whether a notification is forwarded to the client if policy allows it. The gateway itself sends
	// the notifications that are not forwarded.
	Forwards(notification string) bool
	// IsSubscribed reports whether a message on the stream of a subscription belongs to the subscription.
	IsSubscribed(m *jsonrpc.Answer) bool
	// ListedDigest returns the digest of a tool's definition as the session has listed it; nil if the session has not
	// listed the tool.
	ListedDigest(tool string) []byte
	// Resumable returns the session in which a client may continue the stream of an answer.
	Resumable(own *session.Session) *session.Session
}

// Direct is the addressing of a server at a URL of its own.
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
