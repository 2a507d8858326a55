package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// A client's responses cannot be delivered to the server. The client's request fails and releases its resources. It
// counts as sent to the server.
func TestStateless_FailedReplyEndsTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &statefulServer{notify: func(text string) error {
			if strings.Contains(text, `"result"`) {
				return fmt.Errorf("%w: it is away", upstream.ErrNeverSent)
			}
			return nil
		}}
		asker(s)
		sess := flattened(t, s)
		a, err := sess.Forward(t.Context(), leg(t, 1, ""), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = sess.Forward(t.Context(), leg(t, 2, `,"inputResponses":{"1":{}},"requestState":"`+stateOf(t, a)+`"`), nil)
		if !errors.Is(err, upstream.ErrNoAnswer) || errors.Is(err, upstream.ErrNeverSent) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// A stdio process handles two calls at a time. If the process sends a request, the request is refused, because the
// process does not specify to which call the request belongs.
func TestStateless_RefusesRequestsOfUnknownCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &statefulServer{kind: "stdio"}
		started := make(chan struct{}, 2)
		s.answers = func(_ context.Context, _ upstream.Request, events func([]byte)) (string, error) {
			started <- struct{}{}
			time.Sleep(time.Second)
			events([]byte(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}`))
			time.Sleep(time.Second)
			return `"result":{"content":[]}`, nil
		}
		sess := flattened(t, s)
		ended := make(chan string, 2)
		for i := range 2 {
			r := leg(t, i+1, "")
			go func() {
				a, err := sess.Forward(t.Context(), r, nil)
				if err != nil {
					ended <- err.Error()
					return
				}
				ended <- string(a.Message.Raw)
			}()
		}
		for range 2 {
			if got := <-ended; !strings.Contains(got, `"content":[]`) {
				t.Errorf("it ended with %s", got)
			}
		}
		if got := strings.Join(s.received(), "\n"); strings.Count(got, `"id":"q","error"`) != 2 {
			t.Errorf("the server got %s", got)
		}
	})
}

// A server's request without params reaches the client with empty params, because some clients require params.
func TestStateless_AddsEmptyParamsToServerRequests(t *testing.T) {
	t.Parallel()
	s := new(statefulServer)
	s.answers = func(ctx context.Context, _ upstream.Request, events func([]byte)) (string, error) {
		events([]byte(`{"jsonrpc":"2.0","id":"q","method":"roots/list"}`))
		<-ctx.Done()
		return "", fmt.Errorf("%w: %w", upstream.ErrNoAnswer, context.Cause(ctx))
	}
	sess := flattened(t, s)
	answer, err := sess.Forward(t.Context(), leg(t, 1, ""), nil)
	if err != nil || !strings.Contains(string(answer.Message.Raw), `"inputRequests":{"1":{"method":"roots/list","params":{}}}`) {
		t.Errorf("it is asked %s, %v", answer.Message.Raw, err)
	}
	if err := sess.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
