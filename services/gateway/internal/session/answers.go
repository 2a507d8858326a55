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

	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
)

const (
	// answerPrefix begins the ids of events on the streams of a session's answers.
	answerPrefix = "sluice-"
	// maxAnswers is how many of these streams a session remembers, the newest and those that have not
	// ended, and maxReplay and maxReplayed how many messages and bytes of each: of a longer one the first
	// are forgotten.
	maxAnswers  = 16
	maxReplay   = 256
	maxReplayed = 1 << 20
	// answerKept is for how long a stream is remembered that has ended.
	answerKept = time.Minute
)

// AnswersRoom is the room of what is remembered of answers: none is taken from answers themselves.
func AnswersRoom() (*room.Room, error) {
	return room.New(room.Limits{Principal: 16 << 20, Person: 16 << 20, Server: 64 << 20, All: 64 << 20})
}

// Answers are the streams of a session's answers, so that a client that has lost one can go on behind the
// last event that it got (MCP 2025-11-25, Transports, Resumability and Redelivery). The zero value has
// none. It is safe for concurrent use.
type Answers struct {
	mu     sync.Mutex
	last   int
	order  []*Answering
	closed bool
}

// Answering is one of them. It is safe for concurrent use.
type Answering struct {
	// Server is whose answer it is.
	Server string

	of     *Answers
	number int
	owner  string
	has    *room.Holding
	timer  *time.Timer // of one that has ended; guarded by Answers.mu

	mu sync.Mutex
	// messages are those that are remembered, the last of them with the number last; numbers begin with
	// 1, for 0 is the event by which the stream begins.
	messages [][]byte
	last     int
	bytes    int
	// ended says that the answer was the last, and unrecorded that its outcome is not on record.
	ended, unrecorded bool
	// more is closed when there is more.
	more chan struct{}
	// taken says that its client goes on with it elsewhere.
	taken bool
}

// Begin begins a stream of a server's answer for an owner, which takes of this room until it is forgotten.
// It is nil where there is no room to remember it: then nobody can go on with it.
func (a *Answers) Begin(server, owner string, has *room.Holding) *Answering {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.order) == maxAnswers {
		if i := slices.IndexFunc(a.order, func(s *Answering) bool { return s.timer != nil }); i >= 0 {
			a.forget(i)
		}
	}
	if a.closed || len(a.order) == maxAnswers || !has.Add(room.Free) { // what of a holding costs nothing is for what is in flight
		has.Close()
		return nil
	}
	a.last++
	s := &Answering{Server: server, of: a, number: a.last, owner: owner, has: has, more: make(chan struct{})}
	a.order = append(a.order, s)
	return s
}

// Close forgets all streams, and remembers no more.
func (a *Answers) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for len(a.order) > 0 {
		a.forget(0)
	}
}

// forget needs the lock.
func (a *Answers) forget(i int) {
	s := a.order[i]
	a.order = slices.Delete(a.order, i, i+1)
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages, s.bytes = nil, 0
	s.has.Close()
	s.tell()
}

// ID is that of the event by which the stream begins, behind which all of it comes.
func (s *Answering) ID() string { return s.id(0) }

func (s *Answering) id(n int) string {
	return answerPrefix + strconv.Itoa(s.number) + "-" + strconv.Itoa(n)
}

// Add remembers a message, in parts. It returns the id of its event, whether its client goes on with the
// stream elsewhere, and whether there was room to remember it: where there was none, nothing before it is
// remembered either.
func (s *Answering) Add(parts ...[]byte) (id string, taken, kept bool) {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.messages) > 0 && (len(s.messages) == maxReplay || s.bytes+size > maxReplayed) {
		s.shorten()
	}
	s.last++
	if kept = size <= maxReplayed && s.has.Add(size); kept {
		s.messages = append(s.messages, bytes.Join(parts, nil))
		s.bytes += size
	} else {
		for len(s.messages) > 0 {
			s.shorten()
		}
	}
	s.tell()
	return s.id(s.last), s.taken, kept
}

// End says that nothing more comes, and whether the outcome of what was answered is not on record.
func (s *Answering) End(unrecorded bool) {
	a := s.of
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.timer != nil || !slices.Contains(a.order, s) {
		return
	}
	s.timer = time.AfterFunc(answerKept, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if i := slices.Index(a.order, s); i >= 0 {
			a.forget(i)
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended, s.unrecorded = true, unrecorded
	s.tell()
}

// IsUnrecorded tells of a stream that has ended whether the outcome of what was answered is not on record.
func (s *Answering) IsUnrecorded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unrecorded
}

// tell and shorten need the lock.
func (s *Answering) tell() {
	close(s.more)
	s.more = make(chan struct{})
}

func (s *Answering) shorten() {
	s.bytes -= len(s.messages[0])
	s.has.Drop(len(s.messages[0]))
	s.messages = s.messages[1:]
}

// first is the number of the first message that is remembered, or of the next one. It needs the lock.
func (s *Answering) first() int { return s.last - len(s.messages) + 1 }

// IsAnswers reports whether an event's id is of a stream of answers.
func IsAnswers(id string) bool { return strings.HasPrefix(id, answerPrefix) }

// After finds the stream of an event of this owner's, and the number behind it, from where its client goes
// on; false where that is not remembered.
func (a *Answers) After(id, owner string) (s *Answering, from int, ok bool) {
	var number, n int
	if _, err := fmt.Sscanf(id, answerPrefix+"%d-%d", &number, &n); err != nil {
		return nil, 0, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.order, func(s *Answering) bool { return s.number == number && s.owner == owner })
	if i < 0 {
		return nil, 0, false
	}
	s = a.order[i]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id(n) != id || n < s.first()-1 || n > s.last {
		return nil, 0, false
	}
	s.taken = true
	return s, n + 1, true
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
