package streamable

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/redact"
)

// written parses a message and returns it as the gateway would send it.
func written(text string) upstream.Request {
	m, err := jsonrpc.Parse([]byte(text), jsonrpc.DefaultLimits())
	if err != nil {
		panic(err)
	}
	return upstream.Request{Message: m}
}

// noSecrets returns a redactor that redacts nothing.
func noSecrets() *redact.Redactor { return new(redact.Redactor) }

func asking() upstream.Request {
	return written(`{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":1}}}`)
}

// Case U1. FuzzReadEvents checks that for any stream, the answer is a single response with the request's id. Before the
// answer, only requests and notifications that belong to the request are forwarded.
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
		events := func(m []byte) {
			a, err := jsonrpc.ReadAnswer(m, jsonrpc.AnswerLimits())
			if err != nil || a.Kind == jsonrpc.Response || a.Kind == jsonrpc.Notification && !upstream.BelongsToRequest(a, []byte("1")) {
				t.Errorf("passed on %q, which is neither a request nor a notification of the request: %v", m, err)
			}
		}
		answer, err := readEvents(t.Context(), io.NopCloser(bytes.NewReader(stream)), noSecrets, asking(), receivers{events: events, reply: func(*jsonrpc.Answer) {}, changed: func() {}})
		if err != nil {
			return
		}
		if answer.Kind != jsonrpc.Response || !jsonrpc.SameID(answer.ID.Of(answer.Raw), []byte("1")) || upstream.IsForged(answer) {
			t.Errorf("took %q as the answer", answer.Raw)
		}
	})
}

func TestEventReader_LimitsTheSizeOfAnEvent(t *testing.T) {
	t.Parallel()
	line := "data: " + strings.Repeat("x", 1<<20) + "\n"
	all, err := limits.NewBudget(limits.AnswerQuotas())
	if err != nil {
		t.Fatal(err)
	}
	endless := eventReader{
		in:   bufio.NewReader(strings.NewReader(strings.Repeat(line, 17))),
		data: bodyreader.New(t.Context(), all.Open(&limits.Owner{}), upstream.MaxMessage),
	}
	if data, err := endless.next(); err == nil || len(data) > 0 {
		t.Errorf("%d bytes were taken, %v", len(data), err)
	}
}
