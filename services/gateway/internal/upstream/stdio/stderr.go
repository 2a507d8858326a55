package stdio

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// stderrRead is how much of one line of standard error is looked at, and
	// stderrKept how much is logged, in bytes.
	stderrRead = 8 << 10
	stderrKept = 1 << 10
	// stderrRate is how many lines are logged in a second.
	stderrRate = 20
	// tailLines is how many of the last lines errors quote, and tailKept how much of
	// each, in bytes.
	tailLines = 10
	tailKept  = 256
)

// listen reads the process's standard error until it ends.
func (p *process) listen() {
	r := bufio.NewReaderSize(p.stderr, stderrRead)
	quota := rate{max: stderrRate, per: time.Second}
	skipped := 0
	for {
		line, err := firstOfLine(r)
		if len(line) > 0 {
			text := printable(p.server.clean.Log(string(line)), stderrKept)
			p.spoken.add(text)
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

// firstOfLine reads a line and returns its first stderrRead bytes at most.
func firstOfLine(r *bufio.Reader) ([]byte, error) {
	part, more, err := r.ReadLine()
	line := append([]byte(nil), part...)
	for more && err == nil {
		_, more, err = r.ReadLine()
	}
	if errors.Is(err, io.EOF) && len(line) > 0 {
		return line, nil // the end is seen again
	}
	return line, err
}

// printable returns text with all that could forge or garble a record escaped,
// and with at most limit bytes or a little more where the last one is escaped.
func printable(text string, limit int) string {
	var b strings.Builder
	for i, size := 0, 0; i < len(text); i += size {
		if b.Len() >= limit {
			b.WriteString("...")
			break
		}
		var r rune
		r, size = utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\x` + strconv.FormatUint(uint64(text[i]), 16))
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}

// stderrTail keeps the last lines of standard error. It is safe for concurrent
// use.
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
	t.lines = append(t.lines, printable(line, tailKept))
}

// last returns the lines as the end of a sentence; empty if there are none.
func (t *stderrTail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == 0 {
		return ""
	}
	return `; it wrote last: "` + strings.Join(t.lines, `" "`) + `"`
}

// rate allows max things in each stretch of time. It is for one goroutine.
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
