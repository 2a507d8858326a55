package dispatch

import (
	"bytes"
	"errors"
	"sync"

	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// Sink sends messages to a caller before the response. It is safe for concurrent use.
type Sink interface {
	// HasClient reports whether an MCP client waits for the response. Without an MCP client, the server's requests can't
	// be forwarded, and the call can't be continued with a second request.
	HasClient() bool
	// Accepts reports whether the caller accepts messages before the response.
	Accepts() bool
	// Open starts the stream, so that the caller can see that its request is held. Open is idempotent.
	Open()
	// IsOpen reports whether the stream was started.
	IsOpen() bool
	// Send sends an event. It starts the stream if necessary. It returns an error if the event could not be sent to the
	// caller.
	Send(event upstream.Event, message ...[]byte) error
	// KeepAlive sends data that clients ignore. It returns an error if the caller has disconnected.
	KeepAlive() error
	// Replay sets the message whose answer will be stored. A client that has lost its connection can then resume the
	// stream. Replay has no effect after the stream was started.
	Replay(of Replayable)
}

// Replayable is a message whose answer can be stored, so that the client can resume the answer's stream.
type Replayable interface {
	// RawID returns the id of the message, as raw JSON.
	RawID() []byte
	// BeginAnswer returns a new stream that stores the answer, or nil if the client can't resume streams.
	BeginAnswer() *session.ReplayStream
}

// ErrNoStream means that the caller accepts no messages before the response.
var ErrNoStream = errors.New("the client reads no event stream")

// MaxCallback is the maximum size, in bytes, of a message to a [Callback].
const MaxCallback = 7 << 20

// Callback is the sink for a caller inside the gateway. The zero value accepts no messages. [NewCallback] returns a
// Callback that accepts messages. A Callback is safe for concurrent use.
type Callback struct {
	mu    sync.Mutex
	event func(message []byte)
}

// NewCallback returns a sink that passes each message to event, one at a time. If event is nil, the sink accepts no
// messages.
func NewCallback(event func(message []byte)) *Callback { return &Callback{event: event} }

// HasClient implements [Sink].
func (*Callback) HasClient() bool { return false }

// Accepts implements [Sink].
func (c *Callback) Accepts() bool { return c.event != nil }

// Open implements [Sink].
func (*Callback) Open() {}

// IsOpen implements [Sink].
func (*Callback) IsOpen() bool { return false }

// Send implements [Sink]. It drops a message of more than [MaxCallback] bytes.
func (c *Callback) Send(_ upstream.Event, message ...[]byte) error {
	if c.event == nil {
		return ErrNoStream
	}
	if size := SizeOf(message); size > 0 && size <= MaxCallback {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.event(bytes.Join(message, nil))
	}
	return nil
}

// KeepAlive implements [Sink].
func (*Callback) KeepAlive() error { return nil }

// Replay implements [Sink].
func (*Callback) Replay(Replayable) {}
