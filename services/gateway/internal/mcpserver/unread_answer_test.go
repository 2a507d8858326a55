package mcpserver_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// Case X3. The gateway disconnects a client that reads an answer or a stream more slowly than 64 KiB per second. A
// client that reads slightly faster receives everything.
func TestUnreadAnswer_SlowReaderIsClosed(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	event := []byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1,"message":"` + strings.Repeat("x", 8<<10) + `"}}`)
	kinds := map[string]func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error){
		"a large answer": func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"x":"`+strings.Repeat("x", size)+`"}`), nil
		},
		"a stream": func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			for range size / len(event) {
				events(event)
			}
			return gatewaytest.Result(r, `{}`), nil
		},
	}
	for _, tt := range []struct {
		name  string
		piece int // bytes read each second
		whole bool
	}{
		{"a byte", 1, false}, {"48 KiB", 48 << 10, false}, {"80 KiB", 80 << 10, true},
	} {
		for kind, do := range kinds {
			t.Run(tt.name+" a second of "+kind, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newTestGateway(t)
					id := w.connect().Get("Mcp-Session-Id")
					w.files.Request = do
					c := w.dial()
					defer c.Close()
					if _, err := fmt.Fprint(c, requestHead(anaToken, id, len(toolCall))+toolCall); err != nil {
						t.Fatal(err)
					}
					begin, got, piece := time.Now(), 0, make([]byte, tt.piece)
					for {
						n, err := io.ReadAtLeast(c, piece, 1)
						if got += n; err != nil || got > size {
							break
						}
						time.Sleep(time.Duration(float64(n) / float64(tt.piece) * float64(time.Second)))
					}
					took := time.Since(begin).Round(time.Second)
					t.Logf("%d KiB came within %v", got>>10, took)
					if (got > size*9/10) != tt.whole {
						t.Errorf("%d bytes came", got)
					}
					if !tt.whole && took > 10*time.Second+time.Second*size/(64<<10) {
						t.Errorf("it was held for %v", took)
					}
				})
			})
		}
	}
}

// Case X3. While an answer to a caller waits for memory, the caller's next requests are refused before they are sent to
// a server, and the refusals are recorded. Other callers are not affected. For requests that were already sent, the
// outcomes are recorded and the caller receives answers.
func TestUnreadAnswer_BlocksFurtherRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		anas := w.connect()
		ben := http.Header{"Authorization": {"Bearer " + benToken}}
		ben.Set("Mcp-Session-Id", w.do("POST", "/mcp/files", initialize, ben).header.Get("Mcp-Session-Id"))
		sent, read := 0, make(chan struct{})
		w.files.Request = func(ctx context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			sent++
			if err := r.Room.Grow(ctx, limits.ReserveBytes); err != nil {
				return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, err)
			}
			r.Room.Settle(limits.ReserveBytes)
			<-read
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		replies := make(chan httpResponse, limits.PrincipalBytes/limits.ReserveBytes+1)
		for range cap(replies) { // all answers get memory except one, which waits until its timeout
			go func() { replies <- w.do("POST", "/mcp/files", toolCall, anas) }()
			synctest.Wait()
		}
		for method, body := range map[string]string{"a call": toolCall, "a list": `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`, "a session": initialize} {
			if got := w.do("POST", "/mcp/files", body, anas); got.code() != "abuse_limited" || !strings.Contains(got.body, "read") {
				t.Errorf("%s: %d %s", method, got.status, got.body)
			}
		}
		if n := len(w.Journal.Records(journal.KindRefusal)); n != 3 || sent != cap(replies) {
			t.Errorf("%d refusals are on record, %d requests were sent", n, sent)
		}
		go func() { replies <- w.do("POST", "/mcp/files", toolCall, ben) }()
		synctest.Wait()
		if sent != cap(replies)+1 {
			t.Error("another caller's request was refused")
		}
		late := <-replies // the answer that waits until the server's timeout
		if late.code() != "outcome_unknown" || !strings.Contains(late.body, "no memory is left for the answer") {
			t.Errorf("%d %s", late.status, late.body)
		}
		if out := w.Journal.Records(journal.KindOutcome); len(out) != 1 || out[0].Code != "outcome_unknown" || !strings.Contains(out[0].Message, "no memory is left for the answer") {
			t.Errorf("%+v", out)
		}
		close(read)
		for range cap(replies) {
			if got := <-replies; got.code() != "" {
				t.Errorf("%d %s", got.status, got.body)
			}
		}
		if got := w.do("POST", "/mcp/files", toolCall, anas); got.code() != "" {
			t.Errorf("later: %d %s", got.status, got.body)
		}
	})
}
