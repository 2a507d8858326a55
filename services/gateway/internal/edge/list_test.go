package edge_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// X1: nobody works on a list whose caller has gone.
func TestX1AListEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		id := w.connect().Get("Mcp-Session-Id")
		ended := make(chan error, 1)
		w.request = func(ctx context.Context, _ upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			<-ctx.Done()
			ended <- ctx.Err()
			return upstream.Answer{}, upstream.ErrNoAnswer
		}
		c := w.dial()
		if _, err := fmt.Fprint(c, head(anaToken, id, len(toolsList))+toolsList); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		begin := time.Now()
		c.Close()
		if err := <-ended; err == nil || time.Since(begin) > time.Second {
			t.Errorf("the server's list went on for %v: %v", time.Since(begin), err)
		}
	})
}

// X1: the lists of one principal wait for one another, and calls for none.
func TestX1ListsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var working, most atomic.Int32
		release := make(chan struct{})
		filter := w.filter
		w.filter = func(r *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
			if n := working.Add(1); n > most.Load() {
				most.Store(n)
			}
			<-release
			working.Add(-1)
			return filter(r)
		}
		w.request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return answer(r, `{"tools":[{"name":"a"}],"content":[]}`), nil
		}
		ana := w.connect()
		statuses := make(chan int, 100)
		for range cap(statuses) {
			go func() { statuses <- w.do("POST", "/mcp/files", toolsList, ana).status }()
		}
		synctest.Wait()
		all := max(1, runtime.GOMAXPROCS(0)/2)
		if share := max(1, all/2); int(most.Load()) != share {
			t.Errorf("%d lists of one principal are judged at a time, want %d", most.Load(), share)
		}
		if got := w.do("POST", "/mcp/files", toolCall, ana); got.status != http.StatusOK || got.code() != "" {
			t.Errorf("its call: %d %s", got.status, got.body)
		}
		close(release)
		for range cap(statuses) {
			if status := <-statuses; status != http.StatusOK {
				t.Errorf("a list that has waited: %d", status)
			}
		}
	})
}
