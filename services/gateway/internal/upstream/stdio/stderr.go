package stdio

import (
	"bufio"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	// maxReadLine is the maximum number of bytes that are read from one line of standard error. maxLoggedLine is the
	// maximum number of bytes of a line that are logged.
	maxReadLine   = 8 << 10
	maxLoggedLine = 1 << 10
	// stderrRate is the maximum number of lines that are logged per second.
	stderrRate = 20
	// tailLines is the maximum number of last lines of standard error that an error quotes. maxTailLine is the maximum
	// number of bytes that it quotes from each line.
	tailLines   = 10
	maxTailLine = 256
)

func (p *process) listen() {
	r := bufio.NewReaderSize(notifyingReader{p.stderr, p.starting.wrote}, maxReadLine)
	quota := rate{max: stderrRate, per: time.Second}
	skipped := 0
	for {
		line, err := firstOfLine(r)
		if len(line) > 0 {
			text := upstream.Escaped(p.server.operatorScrubber.Log(string(line)), maxLoggedLine)
			p.lastLines.add(text)
			if quota.allow(time.Now(), 1) {
				p.log.DebugContext(context.Background(), "server wrote to standard error", "line", text, "skipped_before", skipped)
				skipped = 0
			} else {
				skipped++
			}
		}
		if err != nil {
			return
		}
	}
}

// firstOfLine reads a line and returns at most its first maxReadLine bytes.
func firstOfLine(r *bufio.Reader) ([]byte, error) {
	part, more, err := r.ReadLine()
	line := append([]byte(nil), part...)
	for more && err == nil {
		_, more, err = r.ReadLine()
	}
	if errors.Is(err, io.EOF) && len(line) > 0 {
		return line, nil // the next call returns the error
	}
	return line, err
}

// stderrTail stores the last lines of standard error. It is safe for concurrent use.
type stderrTail struct {
	mu    sync.Mutex
	lines []string
}

func (t *stderrTail) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == tailLines {
		t.lines = append(t.lines[:0], t.lines[1:]...)
	}
	t.lines = append(t.lines, upstream.Escaped(line, maxTailLine))
}

// last returns the stored lines in a form that can be appended to a sentence. It returns "" if there are no lines.
func (t *stderrTail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == 0 {
		return ""
	}
	return `; it wrote last: "` + strings.Join(t.lines, `" "`) + `"`
}

// line returns the last line that is neither blank nor one of [ignoredLines]. If there is no such line, it returns the
// last line that is not blank, or "" if all lines are blank.
func (t *stderrTail) line() (last string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, line := range slices.Backward(t.lines) {
		switch {
		case strings.TrimSpace(line) == "":
		case !isIgnored(line):
			return line
		case last == "":
			last = line
		}
	}
	return last
}

// rate allows at most max units per period. It must be used by one goroutine at a time.
type rate struct {
	max   int
	per   time.Duration
	since time.Time
	n     int
}

func (r *rate) allow(now time.Time, n int) bool {
	if now.Sub(r.since) >= r.per {
		r.since, r.n = now, 0
	}
	r.n += n
	return r.n <= r.max
}
