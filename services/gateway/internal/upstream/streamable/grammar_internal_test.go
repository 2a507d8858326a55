package streamable

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

func newEvents(t *testing.T, stream io.Reader) *eventReader {
	t.Helper()
	all, err := limits.NewBudget(limits.AnswerQuotas())
	if err != nil {
		t.Fatal(err)
	}
	e := &eventReader{data: bodyreader.New(t.Context(), all.Open(&limits.Owner{}), upstream.MaxMessage)}
	e.continueWith(io.NopCloser(stream))
	return e
}

// event is a parsed event: its data, its id, the stream's last id, and the retry time in milliseconds.
type event struct {
	data, id, last string
	wait           int64
}

// A stream is parsed as the HTML Standard defines it, no matter how it is split into pieces.
func TestEventReader_FollowsTheHTMLStandard(t *testing.T) {
	t.Parallel()
	const lines = "id: 1|data: a|data:  b|data:c|| |:comment|data|event: ping|data: x||event|data: y||id|data: z||id: 2|retry: 70|retry: 7x||data: unfinished|"
	want := []event{{"a\n b\nc", "1", "1", 0}, {"", "", "1", 0}, {"y", "", "1", 0}, {"z", "", "", 0}, {"", "2", "2", 70}}
	for name, stream := range map[string]string{
		"LF":            strings.ReplaceAll(lines, "|", "\n"),
		"CR":            strings.ReplaceAll(lines, "|", "\r"),
		"CR LF":         strings.ReplaceAll(lines, "|", "\r\n"),
		"mixed":         strings.ReplaceAll(strings.ReplaceAll(lines, "||", "\r\n\n"), "|", "\r"),
		"a mark, LF":    "\ufeff" + strings.ReplaceAll(lines, "|", "\n"),
		"a mark, CR LF": "\ufeff" + strings.ReplaceAll(lines, "|", "\r\n"),
	} {
		for how, reader := range map[string]io.Reader{"whole": strings.NewReader(stream), "in bytes": iotest.OneByteReader(strings.NewReader(stream)), "in halves": iotest.HalfReader(strings.NewReader(stream))} {
			e := newEvents(t, reader)
			var got []event
			data, err := e.next()
			for ; err == nil; data, err = e.next() {
				got = append(got, event{string(data), e.id, e.last, e.wait.Milliseconds()})
			}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(event{})); diff != "" || !errors.Is(err, errEnded) {
				t.Errorf("%s, %s: %v (-want +got):\n%s", name, how, err, diff)
			}
		}
	}
}

// A byte order mark inside the stream is part of its line. A long line is read completely.
func TestEventReader_ReadsByteOrderMarksAndLongLines(t *testing.T) {
	t.Parallel()
	e := newEvents(t, strings.NewReader("data: \ufeffa\n\ufeffdata: b\n\n"))
	if data, err := e.next(); err != nil || string(data) != "\ufeffa" {
		t.Errorf("read %q, %v", data, err)
	}
	for _, size := range []int{eventBuffer - 7, eventBuffer - 6, eventBuffer - 5, 3 * eventBuffer} {
		long := strings.Repeat("x", size)
		e := newEvents(t, strings.NewReader("data: "+long+"\r\ndata: y\r\n\r\n"))
		if data, err := e.next(); err != nil || string(data) != long+"\ny" {
			t.Errorf("%d: read %d bytes, %v", size, len(data), err)
		}
	}
}

// An event whose blank line ends with CR is returned immediately, whether or not an LF follows.
func TestEventReader_DoesNotWaitAfterCR(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		e := newEvents(t, r)
		read := make(chan string)
		go func() {
			for data, err := e.next(); err == nil; data, err = e.next() {
				read <- string(data)
			}
			close(read)
		}()
		for _, piece := range []string{"data: a\r\r", "data: b\r\n\r", "\ndata: c\n\r"} {
			_, _ = w.Write([]byte(piece)) // Write returns only when the reader has read the piece
			synctest.Wait()
			select {
			case data := <-read:
				if want := strings.Trim(piece, "\r\n"); data != want[len("data: "):] {
					t.Errorf("read %q behind %q", data, piece)
				}
			default:
				t.Errorf("nothing was read behind %q", piece)
			}
		}
		_ = w.Close()
		<-read
	})
}
