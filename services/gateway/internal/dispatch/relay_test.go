package dispatch_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/sse"
)

// sseEvents parses an event stream as the HTML Standard defines it (section 9.2.6): lines end in CR LF, LF or CR.
func sseEvents(stream string) (events []string, other bool) {
	var data []string
	kind := ""
	stream = strings.ReplaceAll(strings.ReplaceAll(stream, "\r\n", "\n"), "\r", "\n")
	for line := range strings.SplitSeq(stream, "\n") {
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if data != nil {
				events = append(events, strings.Join(data, "\n"))
				other = other || kind != "message"
			}
			data, kind = nil, ""
		case field == "data":
			data = append(data, value)
		case field == "event":
			kind = value
		default:
			other = true
		}
	}
	return events, other || data != nil
}

// Case U1. Each message from a server becomes one event of type message, and its content is not changed.
func FuzzAMessageStaysInItsEvent(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"data":"x"}}`,
		"{\"jsonrpc\":\"2.0\",\n\n\"method\":\"notifications/progress\",\r\r\"params\":{}}",
		"{\"jsonrpc\":\"2.0\",\r\n\r\n\t\"method\":\"notifications/progress\"}\n\n",
		"\n\n{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"a\":\"\u2028\u2029\u0085\"}}",
		"{\"jsonrpc\":\"2.0\",\n: \n\"method\":\"notifications/progress\"}",
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"a":"\n\ndata: {}\r\revent: x"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		if m, err := jsonrpc.ReadAnswer(message, jsonrpc.AnswerLimits()); err != nil || m.Kind != jsonrpc.Notification || m.Method != mcp.MethodProgress {
			t.Skip("no such message goes through")
		}
		rec, out := newStreamRelay(t.Context(), t)
		const before, after = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"n":1}}`, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"n":2}}`
		for _, m := range []string{before, string(message), after} {
			out.Event([]byte(m))
		}
		events, other := sseEvents(rec.Body.String())
		if other || len(events) != 3 || events[0] != before || events[2] != after {
			t.Fatalf("%q became %q", message, rec.Body)
		}
		parsed, err := jsonrpc.ReadAnswer(message, jsonrpc.AnswerLimits())
		if err != nil {
			t.Fatal(err)
		}
		clean, err := jsonrpc.ApplyEdits(message, parsed.Clean(nil)...)
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.NewReplacer("\r", " ", "\n", " ").Replace(string(clean)); events[1] != want {
			t.Errorf("%q reads as %q", clean, events[1])
		}
	})
}

// Case X1.
func TestRelay_LargeEventsWaitForTimeslices(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(t.Context()) // a wait for a time slice fails at once if the context is cancelled
	cancel()
	for size, want := range map[int]bool{100: true, limits.UncountedBytes + 1: false} {
		rec, out := newStreamRelay(gone, t)
		out.Event([]byte(`{"jsonrpc":"2.0","method":"notifications/progress"}` + strings.Repeat(" ", size)))
		if got := rec.Body.Len() > 0; got != want {
			t.Errorf("a message of %d bytes was read without a turn: %t, want %t", size, got, want)
		}
	}
}

// newStreamRelay returns a response recorder for a client that accepts event streams, and the relay that writes to it.
func newStreamRelay(ctx context.Context, t *testing.T) (*httptest.ResponseRecorder, *dispatch.Relay) {
	t.Helper()
	all, err := limits.NewBudget(limits.AnswerQuotas())
	if err != nil {
		t.Fatal(err)
	}
	load, err := limits.NewRequests(all, all)
	if err != nil {
		t.Fatal(err)
	}
	slot, err := load.Begin(&identityv1.Principal{Tenant: "acme", Subject: "ana"}, "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(slot.End)
	rec := httptest.NewRecorder()
	to := sse.NewWriter(rec, http.Header{"Accept": {"text/event-stream"}})
	x := newExchange(ctx, to)
	x.Message, x.Slot = new(jsonrpc.Message), slot
	return rec, x.NewRelay()
}
