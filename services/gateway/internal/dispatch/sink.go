package dispatch

import (
	"bytes"
	"errors"
	"sync"

	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// Sink receives the messages that are sent to a caller before the response. It is safe for concurrent use.
type Sink interface {
	// HasClient reports whether an MCP client waits for the response. Otherwise requests of the server can't be
	// answered, and the request can't be continued by another.
	HasClient() bool
	// Accepts reports whether the caller takes messages before the response.
	Accepts() bool
	// Open begins the stream, so that a caller sees that its request is held. It is idempotent.
	Open()
	// IsOpen reports whether the stream has begun.
	IsOpen() bool
	// Send sends an event, which begins the stream. An error means that the caller can't get the event.
	Send(event upstream.Event, message ...[]byte) error
	// KeepAlive sends something that clients ignore. An error means that the caller has disconnected.
	KeepAlive() error
	// Replay sets the message whose answer is stored, if the client may continue the stream after it has lost its
	// connection. It has no effect once the stream has begun.
	Replay(of Replayable)
}

// Replayable is a message whose answer may be stored.
type Replayable interface {
	// RawID returns the id of the message, as raw JSON.
	RawID() []byte
	// BeginAnswer begins to store the answer; nil if the client can't continue its stream.
	BeginAnswer() *session.ReplayStream
}

// ErrNoStream means that the caller takes no messages before the response.
var ErrNoStream = errors.New("the client reads no event stream")

// MaxCallback is the maximum size of a message to a [Callback], in bytes.
const MaxCallback = 7 << 20

// Callback is the sink of a caller inside the gateway. The zero value accepts no messages. [NewCallback] returns a
// Callback that accepts messages. A Callback is safe for concurrent use.
type Callback struct {
	mu    sync.Mutex
	event func(message []byte)
}

// NewCallback returns a sink that calls event with one message at a time. A nil event accepts nothing.
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
