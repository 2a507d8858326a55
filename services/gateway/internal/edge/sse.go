package edge

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	// headerOutcome marks an answer whose outcome is not on record.
	headerOutcome = "Sluice-Outcome"
	// resumeRetry is after how many milliseconds a client that has lost a stream is to come back.
	resumeRetry = "1000"
)

// sse answers one HTTP request: with JSON, or with an event stream once something comes before the answer (MCP
// 2025-11-25, Transports, Streamable HTTP).
type sse struct {
	w http.ResponseWriter
	// accepts reports whether the client reads event streams, and prefers whether it names them before JSON.
	accepts, prefers bool

	mu sync.Mutex
	// started reports whether the stream has begun.
	started bool
	// of is the message that is answered; nil if the answer is not to be kept.
	of kept
	// kept is the stream as its client may continue it; nil if the client can't.
	kept *session.Answering
	// last reports whether the answer is being written, detached whether the client has to come back for it, and
	// unrecorded whether its outcome is not on record.
	last, detached, unrecorded bool
}

func newSSE(w http.ResponseWriter, h http.Header) *sse {
	before, _, accepts := strings.Cut(strings.Join(h["Accept"], ","), "text/event-stream")
	return &sse{w: w, accepts: accepts, prefers: accepts && !strings.Contains(before, "json")}
}

func (s *sse) reads() bool { return s.accepts }

func (s *sse) keep(of kept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.of = of
	}
}

func (s *sse) open() {
	if !s.accepts {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start()
	s.flush()
}

// flush also gives the end of a stream, which net/http writes, its time. A client that has gone needs nothing.
func (s *sse) flush() { _ = http.NewResponseController(s.w).Flush() }

func (s *sse) isOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started
}

func (s *sse) send(event upstream.Event, message ...[]byte) error {
	if !s.accepts {
		return errNoStream
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start()
	return s.write(event, message...)
}

func (s *sse) comment() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start()
	if _, err := io.WriteString(s.w, ": alive\n\n"); err != nil {
		return err
	}
	return http.NewResponseController(s.w).Flush()
}

// start sends the head of an event stream. It needs the lock.
func (s *sse) start() {
	if s.started {
		return
	}
	s.started = true
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
	if s.of != nil {
		s.kept = s.of.beginAnswer()
	}
	if s.kept != nil {
		_, _ = io.WriteString(s.w, "id: "+s.kept.ID()+"\nretry: "+resumeRetry+"\ndata: \n\n") //nolint:gosec // the id is the gateway's own, and a client that has gone comes back, or needs none
	}
}

// write writes one event. Each line break of the message becomes a space: line breaks only stand between tokens, where
// both mean the same, and so no message can break out of its event. It needs the lock.
func (s *sse) write(event upstream.Event, parts ...[]byte) error {
	if s.kept != nil {
		id, taken, kept := s.kept.Add(parts...)
		if s.last && taken && !kept { // its client waits elsewhere, and needs an end
			lost, err := (&refusal.Refusal{Code: commonv1.Code_CODE_OUTCOME_UNKNOWN, Message: "the answer is too large to be kept for a client that has lost its stream."}).Error(s.of.id(), mcp.CodeInternal)
			if err == nil {
				s.kept.Add(lost)
			}
		}
		if s.last {
			s.kept.End(s.unrecorded)
		}
		if taken || s.last && s.detached && kept {
			return nil
		}
		event.ID = id
	}
	head := "data: "
	if len(parts) > 0 {
		head = "event: message\n" + head
	}
	if event.Retry != "" {
		head = "retry: " + event.Retry + "\n" + head
	}
	if event.ID != "" {
		head = "id: " + event.ID + "\n" + head
	}
	_, err := io.WriteString(s.w, head) //nolint:gosec // ids are the gateway's own, or were given to this session
	for _, part := range parts {
		if err == nil {
			err = writeOnLine(s.w, part)
		}
	}
	if err == nil {
		_, err = io.WriteString(s.w, "\n\n")
	}
	return errors.Join(err, http.NewResponseController(s.w).Flush())
}

// writeOnLine writes a part of a message without its line breaks.
func writeOnLine(to io.Writer, part []byte) error {
	if bytes.IndexByte(part, '\n') < 0 && bytes.IndexByte(part, '\r') < 0 {
		_, err := to.Write(part)
		return err
	}
	for piece := range slices.Chunk(part, 4<<10) {
		piece = bytes.ReplaceAll(bytes.ReplaceAll(piece, []byte("\n"), []byte(" ")), []byte("\r"), []byte(" "))
		if _, err := to.Write(piece); err != nil {
			return err
		}
	}
	return nil
}

// answer writes the response, and ends the stream if one has begun. A client that has gone needs no answer, so errors
// are not returned.
func (s *sse) answer(resp response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := cmp.Or(resp.status, http.StatusOK)
	if resp.session != "" {
		s.w.Header().Set(headerSession, resp.session)
	}
	if resp.unrecorded { // before a stream begins, if it has not: some clients do not read trailers
		s.setOutcome("unrecorded")
	}
	if resp.detached && s.accepts { // the client learns by the beginning of the stream how to come back
		s.start()
		s.flush()
		s.detached = s.kept != nil
	}
	if resp.body != nil && s.prefers && status == http.StatusOK {
		s.start()
	}
	switch {
	case s.started:
		s.finish(resp)
	case resp.body == nil:
		s.w.WriteHeader(status)
	default:
		s.w.Header().Set("Content-Type", "application/json")
		s.w.WriteHeader(status)
		for _, part := range resp.body {
			if _, err := s.w.Write(part); err != nil {
				return
			}
		}
	}
}

// setOutcome sets the header of that name, or the trailer if a stream has begun. It needs the lock.
func (s *sse) setOutcome(value string) {
	name := headerOutcome
	if s.started {
		name = http.TrailerPrefix + name
	}
	s.w.Header().Set(name, value)
}

// finish ends a stream that has begun, with the answer if there is one. It needs the lock.
func (s *sse) finish(resp response) {
	s.last, s.unrecorded = resp.body != nil, resp.unrecorded
	if s.last {
		_ = s.write(upstream.Event{}, resp.body...)
		return
	}
	if s.kept != nil {
		s.kept.End(false)
	}
	s.flush()
}
