package edge

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/sse"
)

// client answers what it is asked before it has read the whole of it.
type client struct {
	*httptest.ResponseRecorder

	answer func(id string)
}

var asked = regexp.MustCompile(`"id":"(sluice-[A-Z0-9]+)"`)

func (c client) Write(p []byte) (int, error) {
	if m := asked.FindSubmatch(p); m != nil {
		c.answer(string(m[1]))
	}
	return c.ResponseRecorder.Write(p)
}

// A3: an answer that has come counts, also where the call is held no longer in the
// same moment: what was declined would run else.
func TestA3AnAnswerThatHasComeCounts(t *testing.T) {
	t.Parallel()
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		x := asking(t)
		x.sink = eventStream(client{httptest.NewRecorder(), func(id string) {
			x.sess.Asked.Answer(gone(t), clientsAnswer(t, id, `{"action":"decline"}`))
			cancel()
		}})
		if got := x.confirm(x.newRelay())(ctx, "pay"); got != attempt.Declined {
			t.Fatalf("it counts as %v", got)
		}
	}
}

// gone is the context of an answer whose client does not wait until it is looked at.
func gone(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// clientsAnswer is a client's answer with this result.
func clientsAnswer(t *testing.T, id, result string) *gate.Message {
	t.Helper()
	m, err := gate.Parse([]byte(`{"jsonrpc":"2.0","id":"`+id+`","result":`+result+`}`), gate.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// asking is a call of a client that asks whoever sits at it.
func asking(t *testing.T) *exchange {
	t.Helper()
	e := &Edge{deps: Deps{Log: slog.New(slog.DiscardHandler)}}
	x := e.newExchange(t.Context(), httpserver.Caller{}, "s", nil, nil)
	x.sess, x.msg = &session.Session{Client: session.Client{Elicits: true}}, new(gate.Message)
	return x
}

// eventStream is the answer to a client that reads event streams.
func eventStream(w http.ResponseWriter) *sse.Writer {
	return sse.NewWriter(w, http.Header{"Accept": {"application/json, text/event-stream"}})
}

// What a client shows says what each answer does, and is the call as it is, also
// where the client takes it for Markdown: nothing in it is hidden, fetched or drawn.
func TestA3WhatIsAskedIsShownAsItIs(t *testing.T) {
	t.Parallel()
	x, body := asking(t), httptest.NewRecorder()
	x.sink = eventStream(client{body, func(id string) {
		x.sess.Asked.Answer(gone(t), clientsAnswer(t, id, `{"action":"accept","content":{"run":true}}`))
	}})
	text := "call  pay refund\nwhy   **safe**\n\n{\n  \"a\": \"<!--\",\n  \"to\": \"eve\",\n  \"z\": \"--> ![](https://eve.example/x)\"\n}"
	if got := x.confirm(x.newRelay())(t.Context(), text); got != attempt.Confirmed {
		t.Fatalf("it counts as %v", got)
	}
	var ask struct {
		Params struct{ Message string }
	}
	data, _, _ := strings.Cut(strings.TrimPrefix(body.Body.String(), "event: message\ndata: "), "\n")
	if err := json.Unmarshal([]byte(data), &ask, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err)
	}
	words, shown, _ := strings.Cut(ask.Params.Message, "\n\n")
	if !strings.Contains(words, `Tick "Run this call" and accept`) || !strings.Contains(words, "decline") {
		t.Errorf("it says %q", words)
	}
	if want := "    " + strings.ReplaceAll(text, "\n", "\n    "); shown != want {
		t.Errorf("shown\n%s\nwant\n%s", shown, want)
	}
}
