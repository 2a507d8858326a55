package dispatch_test

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
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/forms"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/sse"
)

// client is a response writer that simulates a client. It answers a confirmation request as soon as it has received the
// id of that request.
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

// Case A3. The user declines at the moment when the gateway stops holding the call. The user's answer must count,
// because otherwise a declined call could run.
func TestConfirm_AnswerAtTheLastMomentCounts(t *testing.T) {
	t.Parallel()
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		x := newFormExchange(t)
		x.Sink = eventStream(client{httptest.NewRecorder(), func(id string) {
			x.Session.ClientRequests.Deliver(disconnectedContext(t), newClientAnswer(t, id, `{"action":"decline"}`))
			cancel()
		}})
		if got := dispatch.ConfirmOf(x, x.NewRelay())(ctx, "pay"); got != attempt.Declined {
			t.Fatalf("it counts as %v", got)
		}
	}
}

func disconnectedContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func newClientAnswer(t *testing.T, id, result string) *jsonrpc.Message {
	t.Helper()
	m, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":"`+id+`","result":`+result+`}`), jsonrpc.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func newExchange(ctx context.Context, sink dispatch.Sink) *dispatch.Exchange {
	x := &dispatch.Exchange{
		Dispatcher: &dispatch.Dispatcher{Deps: dispatch.Deps{Log: slog.New(slog.DiscardHandler), Forms: forms.Open(ctx, "", slog.New(slog.DiscardHandler)), Limits: jsonrpc.DefaultLimits()}},
		ClientCtx:  ctx, Sink: sink, ServerName: "s",
	}
	x.Addressing = dispatch.Direct{Exchange: x}
	return x
}

func newFormExchange(t *testing.T) *dispatch.Exchange {
	t.Helper()
	x := newExchange(t.Context(), nil)
	x.Session, x.Message = &session.Session{Client: session.Client{Elicits: true}}, new(jsonrpc.Message)
	return x
}

func eventStream(w http.ResponseWriter) *sse.Writer {
	return sse.NewWriter(w, http.Header{"Accept": {"application/json, text/event-stream"}})
}

// Case A3. The form explains each answer and shows the call literally. Even if the client renders Markdown, no part of
// the call is hidden, fetched or formatted.
func TestConfirm_ShowsTheCallVerbatim(t *testing.T) {
	t.Parallel()
	x, body := newFormExchange(t), httptest.NewRecorder()
	x.Sink = eventStream(client{body, func(id string) {
		x.Session.ClientRequests.Deliver(disconnectedContext(t), newClientAnswer(t, id, `{"action":"accept","content":{"run":true}}`))
	}})
	text := "call  pay refund\nwhy   **safe**\n\n{\n  \"a\": \"<!--\",\n  \"to\": \"eve\",\n  \"z\": \"--> ![](https://eve.example/x)\"\n}"
	if got := dispatch.ConfirmOf(x, x.NewRelay())(t.Context(), text); got != attempt.Confirmed {
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
