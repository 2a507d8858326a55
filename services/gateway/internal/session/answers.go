package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
)

const (
	// answerPrefix begins the ids of events on the streams of a session's answers.
	answerPrefix = "sluice-"
	// maxAnswers is how many of these streams a session remembers, the newest, and maxReplay and
	// maxReplayed how many messages and bytes of each: of a longer one the first are forgotten.
	maxAnswers  = 16
	maxReplay   = 256
	maxReplayed = 1 << 20
	// answerKept is for how long a stream is remembered that has ended.
	answerKept = time.Minute
)

// Answers are the streams of a session's answers, so that a client that has lost one can go on behind the
// last event that it got (MCP 2025-11-25, Transports, Resumability and Redelivery). The zero value has
// none. It is safe for concurrent use.
type Answers struct {
	mu    sync.Mutex
	last  int
	order []*Answering
}

// Answering is one of them. It is safe for concurrent use.
type Answering struct {
	of     *Answers
	number int
	has    *room.Holding

	mu sync.Mutex
	// messages are those that are remembered, the last of them with the number last; numbers begin with
	// 1, for 0 is the event by which the stream begins.
	messages [][]byte
	last     int
	bytes    int
	// ended says that the answer was the last.
	ended bool
	// more is closed when there is more.
	more chan struct{}
	// taken says that its client goes on with it elsewhere.
	taken bool
}

// Begin begins a stream, which takes of this room, until it is forgotten.
func (a *Answers) Begin(has *room.Holding) *Answering {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last++
	s := &Answering{of: a, number: a.last, has: has, more: make(chan struct{})}
	if a.order = append(a.order, s); len(a.order) > maxAnswers {
		a.order[0].has.Close()
		a.order = a.order[1:]
	}
	return s
}

// ID is that of the event by which the stream begins, behind which all of it comes.
func (s *Answering) ID() string { return s.id(0) }

func (s *Answering) id(n int) string {
	return answerPrefix + strconv.Itoa(s.number) + "-" + strconv.Itoa(n)
}

// Add remembers a message, in parts, of which last says that it is the answer. It returns the id of its
// event, and whether its client goes on with the stream elsewhere.
func (s *Answering) Add(last bool, parts ...[]byte) (id string, taken bool) {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.messages) > 0 && (len(s.messages) == maxReplay || s.bytes+size > maxReplayed) {
		s.forget()
	}
	s.last++
	if size <= maxReplayed && s.has.Add(size) {
		s.messages = append(s.messages, bytes.Join(parts, nil))
		s.bytes += size
	} else { // and with it all before it: nobody can go on behind those
		for len(s.messages) > 0 {
			s.forget()
		}
	}
	if last {
		s.ended = true
		time.AfterFunc(answerKept, func() { s.of.drop(s) })
	}
	close(s.more)
	s.more = make(chan struct{})
	return s.id(s.last), s.taken
}

// first is the number of the first message that is remembered, or of the next one. It needs the lock.
func (s *Answering) first() int { return s.last - len(s.messages) + 1 }

// forget forgets the first message. It needs the lock.
func (s *Answering) forget() {
	s.bytes -= len(s.messages[0])
	s.has.Drop(len(s.messages[0]))
	s.messages = s.messages[1:]
}

func (a *Answers) drop(s *Answering) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, other := range a.order {
		if other == s {
			a.order = append(a.order[:i:i], a.order[i+1:]...)
			s.has.Close()
		}
	}
}

// IsAnswers tells whether an event's id is of a stream of answers.
func IsAnswers(id string) bool { return strings.HasPrefix(id, answerPrefix) }

// After finds the stream of an event, and the number behind it, from where its client goes on; false where
// that is not remembered.
func (a *Answers) After(id string) (s *Answering, from int, ok bool) {
	var number, n int
	if _, err := fmt.Sscanf(id, answerPrefix+"%d-%d", &number, &n); err != nil {
		return nil, 0, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.order {
		if s.number != number {
			continue
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.id(n) != id || n < s.first()-1 || n > s.last {
			return nil, 0, false
		}
		s.taken = true
		return s, n + 1, true
	}
	return nil, 0, false
}

// errForgotten means that a message was forgotten before its client came back for it.
var errForgotten = errors.New("it is forgotten")

// Next waits for the message with this number, and returns it with its event's id; none where the stream has
// ended before. The error is that of ctx, or says that the message is forgotten.
func (s *Answering) Next(ctx context.Context, n int) (id string, message []byte, err error) {
	for {
		s.mu.Lock()
		more := s.more
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
		case <-more:
		case <-ctx.Done():
			return "", nil, context.Cause(ctx)
		}
	}
}
