package upstream_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// Subscriptions share the session's stream. Each client receives notifications with its own subscription id. The
// gateway stays subscribed to a resource while any client's subscription includes it.
func TestStateless_SubscriptionsShareAStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &statefulServer{says: make(chan string)}
		s.answers = func(_ context.Context, r upstream.Request, _ func([]byte)) (string, error) {
			if strings.Contains(string(r.Body()), "no:") {
				return `"error":{"code":-32602,"message":"no"}`, nil
			}
			return `"result":{}`, nil
		}
		sess := flattened(t, s)
		type sub struct {
			heard []string
			end   context.CancelFunc
			ended chan struct{}
		}
		begin := func(id, wants string) *sub {
			ctx, cancel := context.WithCancel(t.Context())
			out := &sub{end: cancel, ended: make(chan struct{})}
			r := request(t, `{"jsonrpc":"2.0","id":`+id+`,"method":"subscriptions/listen","params":{"_meta":{`+requestMeta+`},"notifications":`+wants+`}}`, holding(t))
			go func() {
				defer close(out.ended)
				if _, err := sess.Forward(ctx, r, func(raw []byte) { out.heard = append(out.heard, string(raw)) }); err == nil {
					t.Error("a subscription ended by itself")
				}
			}()
			synctest.Wait()
			return out
		}
		one := begin(`1`, `{"toolsListChanged":true,"resourceSubscriptions":["a:b","no:x"]}`)
		two := begin(`"2"`, `{"promptsListChanged":true,"resourceSubscriptions":["a:b"]}`)
		for _, text := range []string{
			`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`,
			`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed","params":{"_meta":{"x":1}}}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`,
			`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`,
			`{"jsonrpc":"2.0","id":5,"method":"sampling/createMessage","params":{}}`,
		} {
			s.says <- text
		}
		synctest.Wait()
		two.end()
		<-two.ended
		s.says <- `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}`
		synctest.Wait()
		one.end()
		<-one.ended
		synctest.Wait()
		ack := func(id, of string) string {
			return `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":` + id + `},"notifications":` + of + `}}`
		}
		want := [][]string{
			{
				ack(`1`, `{"toolsListChanged":true,"resourceSubscriptions":["a:b"]}`),
				`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":1}}}`,
				`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":1},"uri":"a:b"}}`,
			},
			{
				ack(`"2"`, `{"promptsListChanged":true,"resourceSubscriptions":["a:b"]}`),
				`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"2","x":1}}}`,
			},
		}
		if diff := gocmp.Diff(want, [][]string{one.heard, two.heard}); diff != "" {
			t.Errorf("notifications (-want +got):\n%s", diff)
		}
		var subscribed []string
		for _, text := range s.received() {
			for _, method := range []string{"resources/subscribe", "resources/unsubscribe"} {
				if strings.Contains(text, `"`+method+`"`) {
					subscribed = append(subscribed, method)
				}
			}
		}
		if diff := gocmp.Diff([]string{"resources/subscribe", "resources/subscribe", "resources/subscribe", "resources/unsubscribe"}, subscribed); diff != "" {
			t.Errorf("the server got (-want +got):\n%s", diff)
		}
		if got := strings.Join(s.received(), "\n"); !strings.Contains(got, `"id":5,"error":{"code":-32601`) {
			t.Errorf("what it asked aside has no answer: %s", got)
		}
	})
}

// If a client reads too slowly, its subscription ends, and other clients are not delayed. If one client unsubscribes
// from a resource while another client subscribes to the same resource, the gateway stays subscribed to that resource.
func TestStateless_SlowSubscriberDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &statefulServer{says: make(chan string)}
		s.answers = func(_ context.Context, r upstream.Request, _ func([]byte)) (string, error) {
			time.Sleep(time.Second)
			return `"result":{}`, nil
		}
		sess := flattened(t, s)
		begin := func(ctx context.Context, id, wants string, events func([]byte)) (ended chan error) {
			ended = make(chan error, 1)
			r := request(t, `{"jsonrpc":"2.0","id":`+id+`,"method":"subscriptions/listen","params":{"_meta":{`+requestMeta+`},"notifications":`+wants+`}}`, holding(t))
			go func() {
				_, err := sess.Forward(ctx, r, events)
				ended <- err
			}()
			return ended
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		read, heard := make(chan struct{}), 0
		slow := begin(ctx, `1`, `{"toolsListChanged":true}`, func(raw []byte) {
			if strings.Contains(string(raw), "list_changed\"") {
				<-read
			}
		})
		fine := begin(ctx, `2`, `{"toolsListChanged":true}`, func([]byte) { heard++ })
		synctest.Wait()
		for range 100 {
			s.says <- `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
			synctest.Wait()
		}
		if heard != 101 { // 100 notifications and the acknowledgement
			t.Errorf("the other got %d", heard)
		}
		close(read)
		if err := <-slow; err == nil || !strings.Contains(err.Error(), "too slowly") {
			t.Errorf("the slow one ended with %v", err)
		}
		disconnected, leave := context.WithCancel(t.Context())
		first := begin(disconnected, `3`, `{"resourceSubscriptions":["a:b"]}`, func([]byte) {})
		time.Sleep(2 * time.Second)
		leave()
		<-first
		second := begin(ctx, `4`, `{"resourceSubscriptions":["a:b"]}`, func([]byte) {})
		time.Sleep(5 * time.Second)
		var last string
		for _, text := range s.received() {
			for _, method := range []string{"resources/subscribe", "resources/unsubscribe"} {
				if strings.Contains(text, `"`+method+`"`) {
					last = method
				}
			}
		}
		if last != "resources/subscribe" {
			t.Errorf("the server got %s last", last)
		}
		cancel()
		<-fine
		<-second
		if err := sess.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A stdio process reports a change during a call. Only the clients that have subscribed to the change are notified,
// because the process does not specify to which request the message belongs.
func TestStateless_ChangesGoOnlyToSubscribers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const change = `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}`
		s := &statefulServer{kind: "stdio", says: make(chan string)}
		s.answers = func(_ context.Context, r upstream.Request, events func([]byte)) (string, error) {
			if events != nil {
				events([]byte(change))
			}
			return `"result":{"content":[]}`, nil
		}
		sess := flattened(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		heard, ended := []string(nil), make(chan struct{})
		listens := request(t, `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"_meta":{`+requestMeta+`},"notifications":{"resourceSubscriptions":["a:b"]}}}`, holding(t))
		go func() {
			defer close(ended)
			// Forward returns when ctx is cancelled.
			_, _ = sess.Forward(ctx, listens, func(raw []byte) { heard = append(heard, string(raw)) })
		}()
		synctest.Wait()
		if _, err := sess.Forward(t.Context(), leg(t, 2, ""), func(raw []byte) { t.Errorf("the request gets %s", raw) }); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		cancel()
		<-ended
		if len(heard) != 2 || !strings.Contains(heard[1], `"io.modelcontextprotocol/subscriptionId":1},"uri":"a:b"`) {
			t.Errorf("the subscription gets %v", heard)
		}
		synctest.Wait()
	})
}
