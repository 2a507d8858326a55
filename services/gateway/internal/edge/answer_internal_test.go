package edge

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/wait"
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
		x := &exchange{Edge: &Edge{deps: Deps{Log: slog.New(slog.DiscardHandler)}}, sess: &session.Session{Client: session.Client{Elicits: true}}}
		x.r = httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
		x.w = client{httptest.NewRecorder(), func(id string) {
			x.sess.Asked.Answer(id, []byte(`{"action":"decline"}`))
			cancel()
		}}
		if got := x.confirm(&writer{x: x, streams: true})(ctx, "pay"); got != wait.Declined {
			t.Fatalf("it counts as %v", got)
		}
	}
}
