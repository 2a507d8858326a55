package edge

import (
	"bytes"
	"errors"
	"sync"

	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// stream takes messages that come before an answer to a caller. It is safe for concurrent use.
type stream interface {
	// reads reports whether the caller takes such messages.
	reads() bool
	// open begins the stream, so that a caller that is held sees it. It is idempotent.
	open()
	// isOpen reports whether the stream has begun.
	isOpen() bool
	// send sends an event, which begins the stream. The error means that the caller can't get it.
	send(event upstream.Event, message ...[]byte) error
	// comment sends what no client takes for an event. The error means that the caller has gone.
	comment() error
	// keep sets for which message the stream is kept, if the client may continue it after a lost connection. It changes
	// nothing once the stream has begun.
	keep(kept)
}

// kept is a message whose answer may be kept.
type kept interface {
	// id is the raw id of the message.
	id() []byte
	// beginAnswer begins to keep the answer; nil if the client can't continue its stream.
	beginAnswer() *session.Answering
}

// errNoStream means that the client reads no event stream.
var errNoStream = errors.New("the client reads no event stream")

// callback is the stream of a caller inside the mesh. The zero value takes nothing.
type callback struct {
	mu sync.Mutex
	// event takes one message at a time; nil if the caller wants none.
	event func(message []byte)
}

func (c *callback) reads() bool { return c.event != nil }

func (*callback) open() {}

func (*callback) isOpen() bool { return false }

// send leaves out a message that is larger than answers may be.
func (c *callback) send(_ upstream.Event, message ...[]byte) error {
	if c.event == nil {
		return errNoStream
	}
	if size := sizeOf(message); size > 0 && size <= maxInside {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.event(bytes.Join(message, nil))
	}
	return nil
}

func (*callback) comment() error { return nil }

func (*callback) keep(kept) {}
