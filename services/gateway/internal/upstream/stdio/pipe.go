package stdio

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// maxDropped is the maximum number of bytes of a process's messages that may be dropped per minute. A process that
// exceeds this limit is terminated.
const maxDropped = 4 * upstream.MaxStream

// outgoing is a line whose sender waits until the line is written.
type outgoing struct {
	line []byte
	// permit is the permit to write the line, or nil if the line needs no permit.
	permit upstream.Permit
	start  *lineStart
	// done receives the result. It is buffered.
	done chan error
}

func newOutgoing(line []byte, permit upstream.Permit, start *lineStart) outgoing {
	return outgoing{line: line, permit: permit, start: start, done: make(chan error, 1)}
}

// errPermitEnded means that a line was not written because its permit had ended. errWithdrawn means that a
// line was not written because [lineStart.withdraw] was called.
var (
	errPermitEnded = errors.New("the permit has ended")
	errWithdrawn   = errors.New("the line was withdrawn")
)

// lineStart records whether the writing of a line has begun. It is safe for concurrent use.
type lineStart struct {
	mu sync.Mutex
	// begun is true if at least one byte was written. If withdrawn is true, no byte may be written.
	begun, withdrawn bool
}

// withdraw prevents a line from being written if no byte of the line was written yet. It reports whether it was early
// enough.
func (s *lineStart) withdraw() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withdrawn = !s.begun
	return s.withdrawn
}

// attempt calls write, which tries once to write the rest of the line without waiting. Before the first byte, attempt
// checks whether the line may be written. It does not renew the permit itself. Otherwise, lines from other senders
// would have to wait for the policy service.
func (o outgoing) attempt(write func() (int, error)) (int, error) {
	o.start.mu.Lock()
	defer o.start.mu.Unlock()
	switch {
	case o.start.begun:
	case o.start.withdrawn:
		return 0, errWithdrawn
	case o.permit != nil && o.permit.HasEnded():
		return 0, errPermitEnded
	}
	n, err := write()
	o.start.begun = o.start.begun || n > 0
	return n, err
}

// write writes all messages to the process, one per line. It completes a partly written line even if the sender has
// stopped waiting.
func (p *process) write() {
	for {
		select {
		case <-p.writeEnded:
			return
		case out := <-p.lines:
			out.done <- p.writeLine(out)
		case line := <-p.replies:
			_ = p.writeLine(newOutgoing(line, nil, new(lineStart))) // if this fails, the process is ending
		}
	}
}

// writeLine writes one line. It writes nothing if the line's permit becomes invalid or the line is withdrawn before the
// first byte is written. If writing fails, writeLine terminates the process and returns [upstream.ErrNeverSent] or
// [upstream.ErrNoAnswer].
func (p *process) writeLine(out outgoing) error {
	limit := p.server.cfg.WriteTimeout
	n := 0
	err := p.stdin.SetWriteDeadline(time.Now().Add(limit))
	if err == nil {
		n, err = writePipe(p.stdin, out.line, out.attempt)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errPermitEnded), errors.Is(err, errWithdrawn):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		p.end(fmt.Errorf("it did not read its standard input for %s", limit))
	default:
		p.endBroken(fmt.Errorf("write to its standard input: %w", err))
	}
	if n == 0 {
		return upstream.ErrNeverSent
	}
	return upstream.ErrNoAnswer
}

// frame encodes a message as one line. Line breaks in a message can occur only between tokens, so frame replaces them
// with spaces. U+0085, U+2028 and U+2029 can occur only in strings. frame escapes these characters, because some
// parsers treat them as line breaks.
func frame(message []byte, edits ...jsonrpc.Edit) ([]byte, error) {
	spliced, err := jsonrpc.ApplyEdits(message, edits...)
	if err != nil {
		return nil, err
	}
	line := append(make([]byte, 0, len(spliced)+1), spliced...)
	for i, c := range line {
		if c == '\n' || c == '\r' {
			line[i] = ' '
		}
	}
	for _, lineBreak := range [...][2]string{{"\u0085", `\u0085`}, {"\u2028", `\u2028`}, {"\u2029", `\u2029`}} {
		if bytes.Contains(line, []byte(lineBreak[0])) {
			line = bytes.ReplaceAll(line, []byte(lineBreak[0]), []byte(lineBreak[1]))
		}
	}
	return append(line, '\n'), nil
}

func (p *process) read() {
	defer p.room.Close()
	lines := lineReader{limit: p.server.cfg.MaxMessage}
	lines.long = p.memory(lines.limit)
	lines.r = bufio.NewReaderSize(bodyreader.Pace(p.stdout, lines.long.IsHeld, func() { p.end(bodyreader.ErrSlow) }), limits.UncountedBytes)
	first := true
	flood, dropped := rate{max: upstream.MaxEvents, per: time.Minute}, rate{max: maxDropped, per: time.Minute}
	for {
		line, err := lines.next()
		if err == nil && first {
			first, line = false, bytes.TrimPrefix(line, []byte(jsonrpc.ByteOrderMark))
		}
		switch {
		case errors.Is(err, limits.ErrMemory):
			return // no session needs the remaining lines
		case errors.Is(err, errLongLine):
			p.end(fmt.Errorf("it wrote a line of more than %d bytes", lines.limit))
			return
		case err != nil:
			p.endBroken(errors.New("it closed its standard output"))
			return
		case len(line) == 0:
			continue
		}
		if reason := p.receive(line, lines.own); reason != "" {
			p.drop(reason)
			if now := time.Now(); reason != dropLate && (!flood.allow(now, 1) || !dropped.allow(now, len(line))) {
				p.end(fmt.Errorf("it wrote more than %d unexpected messages, or %d bytes of them, within %s", flood.max, dropped.max, flood.per))
				return
			}
		}
	}
}

// memory returns the buffer for long lines from the process. Lines are charged to the host's principal, because it is
// not known to which request a line belongs before the whole line is read. While the budget is exhausted, nothing more
// is read.
func (p *process) memory(limit int) *bodyreader.Memory {
	return bodyreader.New(p.reading, p.room, limit+len("\r\n"))
}

var errLongLine = errors.New("the line is too long")

type lineReader struct {
	r     *bufio.Reader
	limit int
	// long contains a line that is larger than the buffer of r. own is true if the memory of the current line will not be
	// reused.
	long *bodyreader.Memory
	own  bool
}

// next returns the next line without its line break. The line is valid until the next call, or longer if own is true.
// Bytes after the last line break do not count as a line.
func (l *lineReader) next() ([]byte, error) {
	l.long.Drop()
	l.own = false
	for {
		line, err := l.r.ReadSlice('\n')
		if l.own = l.own || errors.Is(err, bufio.ErrBufferFull); l.own {
			if len(l.long.Bytes())+len(line) > l.limit+len("\r\n") {
				return nil, errLongLine
			}
			if err := l.long.Add(line); err != nil {
				return nil, err
			}
			line = l.long.Bytes()
		}
		switch {
		case len(line) > l.limit+len("\r\n"):
			return nil, errLongLine
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return nil, fmt.Errorf("read a line: %w", err)
		}
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		if len(line) > l.limit {
			return nil, errLongLine
		}
		l.long.Settle()
		return line, nil
	}
}
