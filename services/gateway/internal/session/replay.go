package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
)

const (
	// answerPrefix is the prefix of event ids in a [ReplayStream].
	answerPrefix = "sluice-"
	// maxReplayStreams limits how many streams a session stores. When the limit is reached, the oldest stream that has
	// ended is removed. maxReplay limits how many messages of a stream are stored, and maxReplayed limits their total
	// size, in bytes. The oldest messages are removed first.
	maxReplayStreams = 16
	maxReplay        = 256
	maxReplayed      = 1 << 20
	// replayTime is how long a stream is stored after it has ended.
	replayTime = time.Minute
)

// ReplayRoom returns the memory budget for stored answers. It is separate from the budget for answers in flight.
func ReplayRoom() (*limits.Budget, error) {
	return limits.NewBudget(limits.Quotas{Principal: 16 << 20, Person: 16 << 20, Server: 64 << 20, All: 64 << 20})
}

// ReplayStreams contains the streams of a session's answers. If the connection of such a stream breaks, the client can
// resume the stream after the last event that it has received (MCP 2025-11-25, Transports, Resumability and
// Redelivery). The zero value is empty. It is safe for concurrent use.
type ReplayStreams struct {
	mu     sync.Mutex
	last   int
	order  []*ReplayStream
	closed bool
}

// ReplayStream is the stream that contains one answer and the messages before the answer. It is safe for concurrent
// use.
type ReplayStream struct {
	// Server is the name of the server that answers.
	Server string

	of     *ReplayStreams
	number int
	owner  string
	has    *limits.Memory
	timer  *time.Timer // set when the stream has ended; guarded by ReplayStreams.mu

	mu sync.Mutex
	// messages are the stored messages. last is the number of the message that was added last, even if that message
	// could not be stored. The first message has the number 1, because the event that begins the stream has the number
	// 0.
	messages [][]byte
	last     int
	bytes    int
	// ended is true after the last message was added. unrecorded is true if the journal does not contain the call's
	// outcome.
	ended, unrecorded bool
	// changed is closed and replaced with a new channel when the stream changes.
	changed chan struct{}
	// resumed is true if the client has resumed the stream on another connection.
	resumed bool
}

// Begin creates the stream for a server's answer to the given owner. The stream uses the given memory until the stream
// is removed. If there is not enough memory or the session has too many streams, Begin returns nil. The client then
// cannot resume the stream.
func (a *ReplayStreams) Begin(server, owner string, memory *limits.Memory) *ReplayStream {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.order) == maxReplayStreams {
		if i := slices.IndexFunc(a.order, func(s *ReplayStream) bool { return s.timer != nil }); i >= 0 {
			a.forget(i)
		}
	}
	// A Memory of up to UncountedBytes is not charged to the budget, but every stored stream must be charged. Begin
	// therefore adds UncountedBytes in advance.
	if a.closed || len(a.order) == maxReplayStreams || !memory.Add(limits.UncountedBytes) {
		memory.Close()
		return nil
	}
	a.last++
	s := &ReplayStream{Server: server, of: a, number: a.last, owner: owner, has: memory, changed: make(chan struct{})}
	a.order = append(a.order, s)
	return s
}

// Close removes all streams. After that, Begin returns nil.
func (a *ReplayStreams) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for len(a.order) > 0 {
		a.forget(0)
	}
}

// forget removes the stream with index i. The caller must hold the lock.
func (a *ReplayStreams) forget(i int) {
	s := a.order[i]
	a.order = slices.Delete(a.order, i, i+1)
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages, s.bytes = nil, 0
	s.has.Close()
	s.wake()
}

// ID returns the id of the event that begins the stream.
func (s *ReplayStream) ID() string { return s.id(0) }

func (s *ReplayStream) id(n int) string {
	return answerPrefix + strconv.Itoa(s.number) + "-" + strconv.Itoa(n)
}

// Add stores a message, which is passed in parts, and returns the id of its event. resumed is true if the client has
// resumed the stream on another connection. stored is false if there was not enough memory for the message. In that
// case, Add has also removed the stream's earlier messages.
func (s *ReplayStream) Add(parts ...[]byte) (id string, resumed, stored bool) {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.messages) > 0 && (len(s.messages) == maxReplay || s.bytes+size > maxReplayed) {
		s.trim()
	}
	s.last++
	if stored = size <= maxReplayed && s.has.Add(size); stored {
		s.messages = append(s.messages, bytes.Join(parts, nil))
		s.bytes += size
	} else {
		for len(s.messages) > 0 {
			s.trim()
		}
	}
	s.wake()
	return s.id(s.last), s.resumed, stored
}

// End marks the stream as complete. unrecorded is true if the journal does not contain the call's outcome.
func (s *ReplayStream) End(unrecorded bool) {
	a := s.of
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.timer != nil || !slices.Contains(a.order, s) {
		return
	}
	s.timer = time.AfterFunc(replayTime, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if i := slices.Index(a.order, s); i >= 0 {
			a.forget(i)
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended, s.unrecorded = true, unrecorded
	s.wake()
}

// IsUnrecorded reports whether the journal does not contain the call's outcome. The result is valid only after the
// stream has ended.
func (s *ReplayStream) IsUnrecorded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unrecorded
}

// wake wakes the goroutines that wait in Next. The caller must hold the lock.
func (s *ReplayStream) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *ReplayStream) trim() {
	s.bytes -= len(s.messages[0])
	s.has.Drop(len(s.messages[0]))
	s.messages = s.messages[1:]
}

// first returns the number of the first stored message. If no message is stored, it returns the number that the next
// message will have. The caller must hold the lock.
func (s *ReplayStream) first() int { return s.last - len(s.messages) + 1 }

// IsReplayID reports whether an event id belongs to a [ReplayStream].
func IsReplayID(id string) bool { return strings.HasPrefix(id, answerPrefix) }

// Resume returns the owner's stream that contains the event with the given id. from is the number of the next message
// after that event. Resume returns false if the stream or the event is not stored.
func (a *ReplayStreams) Resume(id, owner string) (s *ReplayStream, from int, ok bool) {
	var number, n int
	if _, err := fmt.Sscanf(id, answerPrefix+"%d-%d", &number, &n); err != nil {
		return nil, 0, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.order, func(s *ReplayStream) bool { return s.number == number && s.owner == owner })
	if i < 0 {
		return nil, 0, false
	}
	s = a.order[i]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id(n) != id || n < s.first()-1 || n > s.last {
		return nil, 0, false
	}
	s.resumed = true
	return s, n + 1, true
}

// errForgotten means that a message was removed before the client asked for it.
var errForgotten = errors.New("the message is no longer stored")

// Next waits for message n of the stream, and returns it with the id of its event. If the stream has ended before
// message n, Next returns neither a message nor an error. If ctx is cancelled, Next returns the cause of the
// cancellation. If message n was removed, Next returns errForgotten.
func (s *ReplayStream) Next(ctx context.Context, n int) (id string, message []byte, err error) {
	for {
		s.mu.Lock()
		changed := s.changed
		switch at := n - s.first(); {
		case at < 0:
			s.mu.Unlock()
			return "", nil, errForgotten
		case at < len(s.messages):
			defer s.mu.Unlock()
			return s.id(n), s.messages[at], nil
		case s.ended:
			s.mu.Unlock()
			return "", nil, nil
		}
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return "", nil, context.Cause(ctx)
		}
	}
}
