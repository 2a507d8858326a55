// Package sse writes answers to MCP clients' HTTP requests, either as JSON or as an event stream (MCP 2025-11-25,
// Transports, Streamable HTTP).
package sse

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
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	// outcomeHeader is a header of answers to calls. It states that the journal does not contain the call's outcome.
	outcomeHeader = "Sluice-Outcome"
	// resumeRetry is how long a client that has lost its connection should wait before it reconnects, in milliseconds.
	resumeRetry = "1000"
)

// Writer writes the answer to one HTTP request. It writes JSON, or an event stream if a message must be sent before the
// answer. It is safe for concurrent use.
type Writer struct {
	w http.ResponseWriter
	// accepts is true if the client accepts event streams. prefers is true if the client lists event streams before JSON
	// in the header Accept.
	accepts, prefers bool

	mu      sync.Mutex
	started bool
	// replayable is the request whose answer is stored so that the client can resume the answer's stream. It is nil if the
	// answer is not stored.
	replayable dispatch.Replayable
	// stored is the stored stream with the answer. It is nil if the client cannot resume the stream.
	stored *session.ReplayStream
	// inAnswer is true while the answer is being written. detached is true if the client must reconnect to receive the
	// answer. unrecorded is true if the journal does not contain the call's outcome.
	inAnswer, detached, unrecorded bool
}

// NewWriter returns a writer for the answer to a request with the given headers. The header Accept determines whether
// the writer may write an event stream.
func NewWriter(w http.ResponseWriter, h http.Header) *Writer {
	before, _, accepts := strings.Cut(strings.Join(h["Accept"], ","), "text/event-stream")
	return &Writer{w: w, accepts: accepts, prefers: accepts && !strings.Contains(before, "json")}
}

// HasClient implements [dispatch.Sink].
func (*Writer) HasClient() bool { return true }

// Accepts implements [dispatch.Sink].
func (s *Writer) Accepts() bool { return s.accepts }

// Replay implements [dispatch.Sink].
func (s *Writer) Replay(replayable dispatch.Replayable) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.replayable = replayable
	}
}

// Open implements [dispatch.Sink].
func (s *Writer) Open() {
	if !s.accepts {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start()
	s.flush()
}

// flush sends the data that was written so far. It ignores errors, because the client might have disconnected.
func (s *Writer) flush() { _ = http.NewResponseController(s.w).Flush() }

// IsOpen implements [dispatch.Sink].
func (s *Writer) IsOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started
}

// Send implements [dispatch.Sink].
func (s *Writer) Send(event upstream.Event, message ...[]byte) error {
	if !s.accepts {
		return dispatch.ErrNoStream
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start()
	return s.write(event, message...)
}

// KeepAlive implements [dispatch.Sink]. It sends a comment, which the client ignores.
func (s *Writer) KeepAlive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start()
	if _, err := io.WriteString(s.w, ": alive\n\n"); err != nil {
		return err
	}
	return http.NewResponseController(s.w).Flush()
}

// start sends the HTTP headers of an event stream, unless they were already sent. The caller must hold the lock.
func (s *Writer) start() {
	if s.started {
		return
	}
	s.started = true
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
	if s.replayable != nil {
		s.stored = s.replayable.BeginAnswer()
	}
	if s.stored != nil {
		// The error is ignored, because a client that has disconnected can resume the stream later.
		_, _ = io.WriteString(s.w, "id: "+s.stored.ID()+"\nretry: "+resumeRetry+"\ndata: \n\n")
	}
}

// write writes one event. It replaces each line break in the message with a space, because a line break would end the
// event. This does not change the meaning of the message, because JSON allows line breaks only between tokens, where a
// space is equivalent. The caller must hold the lock.
func (s *Writer) write(event upstream.Event, parts ...[]byte) error {
	if s.stored != nil {
		id, taken, stored := s.stored.Add(parts...)
		if s.inAnswer && taken && !stored { // the client waits on another connection until the stream ends
			lost, err := (&refusal.Refusal{Code: commonv1.Code_CODE_OUTCOME_UNKNOWN, Message: "the answer is too large to be stored for a client that has lost its connection."}).Error(s.replayable.RawID(), mcp.CodeInternal)
			if err == nil {
				s.stored.Add(lost)
			}
		}
		if s.inAnswer {
			s.stored.End(s.unrecorded)
		}
		if taken || s.inAnswer && s.detached && stored {
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
	_, err := io.WriteString(s.w, head)
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

// writeOnLine writes a part of a message without line breaks.
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

// Answer writes the response, and ends the stream if one has begun. It returns no error, because a write fails only if
// the client has disconnected or reads too slowly.
func (s *Writer) Answer(resp dispatch.Response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := cmp.Or(resp.Status, http.StatusOK)
	if resp.Session != "" {
		s.w.Header().Set(mcp.HeaderSession, resp.Session)
	}
	if resp.Unrecorded { // a header if possible, because some clients do not read trailers
		s.setOutcome("unrecorded")
	}
	if resp.Detached && s.accepts { // the client reconnects with the id in the first event
		s.start()
		s.flush()
		s.detached = s.stored != nil
	}
	if resp.Body != nil && s.prefers && status == http.StatusOK {
		s.start()
	}
	switch {
	case s.started:
		s.finish(resp)
	case resp.Body == nil:
		s.w.WriteHeader(status)
	default:
		s.w.Header().Set("Content-Type", "application/json")
		s.w.WriteHeader(status)
		for _, part := range resp.Body {
			if _, err := s.w.Write(part); err != nil {
				return
			}
		}
	}
}

// setOutcome sets outcomeHeader. If a stream has begun, it sets the trailer with this name instead. The caller must
// hold the lock.
func (s *Writer) setOutcome(value string) {
	name := outcomeHeader
	if s.started {
		name = http.TrailerPrefix + name
	}
	s.w.Header().Set(name, value)
}

// finish ends a stream that has begun. If there is an answer, finish writes it to the stream first. The caller must
// hold the lock.
func (s *Writer) finish(resp dispatch.Response) {
	s.inAnswer, s.unrecorded = resp.Body != nil, resp.Unrecorded
	if s.inAnswer {
		_ = s.write(upstream.Event{}, resp.Body...)
		return
	}
	if s.stored != nil {
		s.stored.End(false)
	}
	s.flush()
}
