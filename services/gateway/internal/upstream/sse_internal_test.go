package upstream

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
)

// asking is a request that asks for progress.
func asking() Request {
	return written(`{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":1}}}`)
}

// U1: whatever a server streams, what is taken as the answer is one response with
// the id that was asked with, and what is passed on before are notifications that belong to it.
func FuzzReadEvents(f *testing.F) {
	for _, seed := range []string{
		"data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n",
		"event: message\r\ndata: {\"jsonrpc\":\"2.0\",\r\ndata: \"id\":1,\"result\":{}}\r\n\r\n",
		"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n\n",
		"event: ping\ndata: x\n\n", ":\n\n", "data\n\n", "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-31403,\"message\":\"\"}}\n\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		answer, err := readEvents(t.Context(), io.NopCloser(bytes.NewReader(stream)), new(scrubber), asking(), func(m []byte) {
			if a, err := gate.ReadAnswer(m, gate.AnswerLimits()); err != nil || a.Kind != gate.Notification || !belongs(a, []byte("1")) {
				t.Errorf("passed on %q, which is no notification of the request: %v", m, err)
			}
		})
		if err != nil {
			return
		}
		if answer.Kind != gate.Response || !gate.SameID(answer.ID.Of(answer.Raw), []byte("1")) || forged(answer) {
			t.Errorf("took %q as the answer", answer.Raw)
		}
	})
}

func TestReadEventHoldsNoMoreThanAMessage(t *testing.T) {
	t.Parallel()
	line := "data: " + strings.Repeat("x", 1<<20) + "\n"
	all, err := room.New(room.Answers())
	if err != nil {
		t.Fatal(err)
	}
	endless := eventReader{
		in:   bufio.NewReader(strings.NewReader(strings.Repeat(line, 17))),
		data: memory{ctx: t.Context(), room: all.Open(&room.Holder{}), most: MaxMessage},
	}
	if data, err := endless.next(); err == nil || len(data) > 0 {
		t.Errorf("%d bytes were taken, %v", len(data), err)
	}
}
