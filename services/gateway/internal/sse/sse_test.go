package sse_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/sse"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// writer returns a Writer for an answer to a client that accepts the given media types.
func writer(accept string) (*httptest.ResponseRecorder, *sse.Writer) {
	rec := httptest.NewRecorder()
	return rec, sse.NewWriter(rec, http.Header{"Accept": {accept}})
}

const both = "application/json, text/event-stream"

func body(parts ...string) (out [][]byte) {
	for _, part := range parts {
		out = append(out, []byte(part))
	}
	return out
}

type written struct {
	Status                        int
	Type, Session, Outcome, AtEnd string
	Body                          string
}

func read(rec *httptest.ResponseRecorder) written {
	got := rec.Result()
	return written{got.StatusCode, got.Header.Get("Content-Type"), got.Header.Get("Mcp-Session-Id"), got.Header.Get("Sluice-Outcome"), got.Trailer.Get("Sluice-Outcome"), rec.Body.String()}
}

func TestWriter_WritesJSONOrAStream(t *testing.T) {
	t.Parallel()
	const json, stream = "application/json", "text/event-stream"
	before := func(w *sse.Writer) { _ = w.Send(upstream.Event{}, []byte(`{"a":`), []byte("1}")) }
	for name, tt := range map[string]struct {
		accept string
		before func(*sse.Writer)
		resp   dispatch.Response
		want   written
	}{
		"an answer":               {both, nil, dispatch.Response{Body: body(`{"b":`, `2}`)}, written{Status: 200, Type: json, Body: `{"b":2}`}},
		"a refusal with a status": {both, nil, dispatch.Response{Body: body(`{}`), Status: 404}, written{Status: 404, Type: json, Body: `{}`}},
		"no body":                 {both, nil, dispatch.Accepted(), written{Status: 202}},
		"a session":               {both, nil, dispatch.Response{Body: body(`{}`), Session: "s-1"}, written{Status: 200, Type: json, Session: "s-1", Body: `{}`}},
		"streams come first":      {"text/event-stream, application/json", nil, dispatch.Response{Body: body(`{}`)}, written{Status: 200, Type: stream, Body: "event: message\ndata: {}\n\n"}},
		"but not for refusals":    {"text/event-stream, application/json", nil, dispatch.Response{Body: body(`{}`), Status: 400}, written{Status: 400, Type: json, Body: `{}`}},
		"after a message":         {both, before, dispatch.Response{Body: body(`{}`), Status: 404}, written{Status: 200, Type: stream, Body: "event: message\ndata: {\"a\":1}\n\nevent: message\ndata: {}\n\n"}},
		"a stream's end":          {both, before, dispatch.Response{}, written{Status: 200, Type: stream, Body: "event: message\ndata: {\"a\":1}\n\n"}},
		"no stream is read":       {json, before, dispatch.Response{Body: body(`{}`)}, written{Status: 200, Type: json, Body: `{}`}},
		"an outcome":              {both, nil, dispatch.Response{Body: body(`{}`), Unrecorded: true}, written{Status: 200, Type: json, Outcome: "unrecorded", Body: `{}`}},
		"an outcome, streamed":    {both, (*sse.Writer).Open, dispatch.Response{Body: body(`{}`), Unrecorded: true}, written{Status: 200, Type: stream, AtEnd: "unrecorded", Body: "event: message\ndata: {}\n\n"}},
		"it is alive":             {both, func(w *sse.Writer) { _ = w.KeepAlive() }, dispatch.Response{Body: body(`{}`)}, written{Status: 200, Type: stream, Body: ": alive\n\nevent: message\ndata: {}\n\n"}},
		"an event of a server":    {both, func(w *sse.Writer) { _ = w.Send(upstream.Event{ID: "7", Retry: "50"}) }, dispatch.Response{}, written{Status: 200, Type: stream, Body: "id: 7\nretry: 50\ndata: \n\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec, w := writer(tt.accept)
			if tt.before != nil {
				tt.before(w)
			}
			w.Answer(tt.resp)
			if diff := cmp.Diff(tt.want, read(rec)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Case U1. A line break in a message does not end the message's event, no matter how the message is split into parts.
func TestWriter_LineBreaksStayInTheirEvent(t *testing.T) {
	t.Parallel()
	message := []byte("{\"a\":\r\n\n1,\r\"b\":\n" + strings.Repeat(" ", 5000) + "\n2}")
	for at := range message {
		rec, w := writer(both)
		if err := w.Send(upstream.Event{}, message[:at], message[at:]); err != nil {
			t.Fatal(err)
		}
		want := "event: message\ndata: " + strings.NewReplacer("\r", " ", "\n", " ").Replace(string(message)) + "\n\n"
		if rec.Body.String() != want {
			t.Fatalf("cut at %d it is %q", at, rec.Body)
		}
	}
}

// answerOf represents a request whose answer is stored in answers.
type answerOf struct{ answers *session.ReplayStreams }

func (answerOf) RawID() []byte { return []byte("7") }

func (a answerOf) BeginAnswer() *session.ReplayStream {
	memory, err := session.ReplayRoom()
	if err != nil {
		return nil
	}
	return a.answers.Begin("files", "ana", memory.Open(new(limits.Owner)))
}

// replayed returns a stream's messages after the event with the given id.
func replayed(t *testing.T, answers *session.ReplayStreams, after string) (out []string) {
	t.Helper()
	stream, next, ok := answers.Resume(after, "ana")
	if !ok {
		t.Fatalf("%s can't be continued", after)
	}
	for ; ; next++ {
		_, message, err := stream.Next(t.Context(), next)
		if err != nil {
			t.Fatal(err)
		}
		if message == nil {
			return out
		}
		out = append(out, string(message))
	}
}

func TestWriter_StoresAnswersForResumption(t *testing.T) {
	t.Parallel()
	answers := new(session.ReplayStreams)
	rec, w := writer(both)
	w.Replay(answerOf{answers})
	w.Open()
	_ = w.Send(upstream.Event{ID: "of-the-server"}, []byte(`{"n":1}`))
	w.Answer(dispatch.Response{Body: body(`{"n":`, `2}`)})
	want := "id: sluice-1-0\nretry: 1000\ndata: \n\nid: sluice-1-1\nevent: message\ndata: {\"n\":1}\n\nid: sluice-1-2\nevent: message\ndata: {\"n\":2}\n\n"
	if rec.Body.String() != want {
		t.Errorf("written is %q, want %q", rec.Body, want)
	}
	if diff := cmp.Diff([]string{`{"n":2}`}, replayed(t, answers, "sluice-1-1")); diff != "" {
		t.Errorf("replayed (-want +got):\n%s", diff)
	}
}

func TestWriter_SendsNothingToAbandonedConnections(t *testing.T) {
	t.Parallel()
	answers := new(session.ReplayStreams)
	rec, w := writer(both)
	w.Replay(answerOf{answers})
	w.Open()
	stream, next, ok := answers.Resume("sluice-1-0", "ana")
	if !ok {
		t.Fatal("it can't be continued")
	}
	w.Answer(dispatch.Response{Body: body(`"` + strings.Repeat("x", 2<<20) + `"`)})
	if got := rec.Body.String(); strings.Contains(got, "xxx") {
		t.Errorf("the answer went to the first connection: %.100s", got)
	}
	_, message, err := stream.Next(t.Context(), next)
	if err == nil { // the answer is too large to be stored, so the client receives an error
		t.Fatalf("event %d is %.100s", next, message)
	}
	_, message, err = stream.Next(t.Context(), next+1)
	if err != nil || !strings.Contains(string(message), `"id":7`) || !strings.Contains(string(message), `"code":"outcome_unknown"`) {
		t.Errorf("its end is %.300s, %v", message, err)
	}
}

func TestWriter_SendsDetachedClientAStreamToResume(t *testing.T) {
	t.Parallel()
	answers := new(session.ReplayStreams)
	rec, w := writer(both)
	w.Replay(answerOf{answers})
	w.Answer(dispatch.Response{Body: body(`{}`), Detached: true})
	if got := rec.Body.String(); got != "id: sluice-1-0\nretry: 1000\ndata: \n\n" {
		t.Errorf("written is %q", got)
	}
	if diff := cmp.Diff([]string{`{}`}, replayed(t, answers, "sluice-1-0")); diff != "" {
		t.Errorf("replayed (-want +got):\n%s", diff)
	}
}
