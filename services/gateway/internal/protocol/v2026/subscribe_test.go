package v2026_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func (a address) subscribe(notifications string) gatewaytest.Message {
	return gatewaytest.Modern("subscriptions/listen", "", `"notifications":`+notifications).To(a.server)
}

// subscription returns a notification that belongs to the subscription with the id 7.
func subscription(method, params string) string {
	return `{"jsonrpc":"2.0","method":"notifications/` + method + `","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}` + params + `}}`
}

const acknowledged = "subscriptions/acknowledged"

// streams makes the server answer a subscription. The server sends each message that it receives from the returned
// channel, until the gateway ends the subscription.
func streams(s *gatewaytest.Server) chan<- string {
	say, own := make(chan string), s.Request
	s.Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
		if r.Method() != "subscriptions/listen" {
			return own(ctx, r, events)
		}
		for {
			select {
			case message := <-say:
				events([]byte(message))
			case <-ctx.Done():
				return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, ctx.Err())
			}
		}
	}
	return say
}

func TestSubscribe_RefusesWhatCannotBeServed(t *testing.T) {
	t.Parallel()
	forEachAddress(t, gatewaytest.Methods(), func(t *testing.T, g *gatewaytest.Gateway, at address) {
		many := `{"resourceSubscriptions":["a"` + strings.Repeat(`,"a"`, 100) + `]}`
		for name, m := range map[string]gatewaytest.Message{
			"a client that reads no stream": at.subscribe("{}").With("Accept", "application/json"),
			"notifications that are a list": at.subscribe("[]"),
			"a filter that is no flag":      at.subscribe(`{"toolsListChanged":"yes"}`),
			"resources that are no list":    at.subscribe(`{"resourceSubscriptions":"a"}`),
			"too many resources":            at.subscribe(many),
		} {
			if got := g.Do(m); got.Code() != "params_invalid" || len(got.Events) != 0 {
				t.Errorf("%s: %d %s", name, got.Status, got.Text)
			}
		}
		if got := g.Inside(at.subscribe("{}"), nil); gatewaytest.CodeOf(string(got.Joined)) != "params_invalid" {
			t.Errorf("a caller inside: %s", got.Joined)
		}
		for _, r := range g.Files().Requests() {
			if strings.Contains(r, "subscriptions/listen") {
				t.Errorf("the server got %s", r)
			}
		}
	})
}

func TestSubscribe_AtAServerOutOfReachIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t)
		g.Policy.Access.CouldAllow = false
		if got := g.Do(address{"files", ""}.subscribe("{}")); got.Code() != "method_denied" {
			t.Errorf("%s", got.Text)
		}
	})
}

// Case T4. The gateway requests only those notifications from the server that the policy allows. The client receives
// those of them that it has subscribed to.
func TestSubscribe_ForwardsWhatPolicyAllows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t, "prompts/list", "resources/subscribe")
		say := streams(g.Files())
		stream := g.Stream(address{"files", ""}.subscribe(`{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["file:///a",""]}`))
		synctest.Wait()
		if sent := last(g.Files()); !strings.HasPrefix(sent, `{"jsonrpc":"2.0","id":7,`) ||
			!strings.HasSuffix(sent, `"notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":false,"resourceSubscriptions":["file:///a"]}}}`) {
			t.Errorf("the server got %s", sent)
		}
		want := []string{subscription(acknowledged, ""), subscription("tools/list_changed", ""), subscription("prompts/list_changed", ""), subscription("resources/updated", `,"uri":"file:///a/below"`)}
		for _, message := range []string{
			want[0], want[1], want[2], subscription("resources/list_changed", ""), subscription("vendor", ""), subscription("resources/updated", `,"uri":"file:///b"`), subscription("resources/updated", `,"uri":"file:///abc"`), want[3],
		} {
			say <- message
		}
		for _, want := range want {
			if got := stream.Next(); got != want {
				t.Errorf("the client got %s, want %s", got, want)
			}
		}
		if intents := g.Journal.Records(journal.KindIntent); len(intents) != 1 || intents[0].Method != "resources/subscribe" || intents[0].Tool != "file:///a" {
			t.Errorf("on record is %+v", intents)
		}
		for _, state := range g.Sessions.List(gatewaytest.Tenant) {
			if state.InFlight != 0 {
				t.Errorf("the stream keeps the state in use: %d requests", state.InFlight)
			}
		}
		g.Sessions.CloseStreams()
		if reply, _ := stream.End(); reply.Response.Refusal != nil || stream.Next() != "" {
			t.Errorf("at its end: %s", reply.Text)
		}
	})
}

// To receive notifications of a changed list, a client needs permission for the list's method.
func TestSubscribe_ToListsNeedsThePermissionToList(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]string{
		"prompts/list":   `"toolsListChanged":false,"promptsListChanged":true,"resourcesListChanged":false,`,
		"resources/list": `"toolsListChanged":false,"promptsListChanged":false,"resourcesListChanged":true,`,
	} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.StartModern(t, method)
				streams(g.Files())
				stream := g.Stream(address{"files", ""}.subscribe(`{"promptsListChanged":true,"resourcesListChanged":true}`))
				synctest.Wait()
				if sent := last(g.Files()); !strings.Contains(sent, want) {
					t.Errorf("the server got %s", sent)
				}
				stream.HangUp()
				stream.End()
			})
		})
	}
}

// Neither the request to the server nor the acknowledgement contains a resource that the policy denies.
func TestSubscribe_DecidesEachResource(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		at             address
		resource, want string
	}{
		"one server": {address{"files", ""}, "file:///a", `"resourceSubscriptions":[]`}, "all servers": {address{"", "files__"}, "mcp.files+file:///a", `"notifications":{}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.StartModern(t, gatewaytest.Methods()...)
				own := g.Files().Open
				g.Files().Open = func(r upstream.Request) (upstream.Answer, error) {
					if r.Method() != "server/discover" {
						return own(r)
					}
					return gatewaytest.Result(r, `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"resources":{"subscribe":true}},"resultType":"complete"}`), nil
				}
				streams(g.Files())
				g.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY}
				stream := g.Stream(tt.at.subscribe(`{"resourceSubscriptions":["` + tt.resource + `"]}`))
				synctest.Wait()
				got := last(g.Files())
				if tt.at.server == "" {
					got = stream.Next()
				}
				if !strings.Contains(got, tt.want) || len(g.Journal.Refusals()) != 1 {
					t.Errorf("%s; recorded refusals: %q", got, g.Journal.Refusals())
				}
				stream.HangUp()
				stream.End()
			})
		})
	}
}

// After a client's token is revoked or its caller has lost access, the gateway sends the client no more notifications.
func TestSubscribe_EndsWithTheAccessOfTheCaller(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ revoke bool }{"the token is revoked": {true}, "the server is out of reach": {false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.StartModern(t)
				say := streams(g.Files())
				revoked := false
				m := address{"files", ""}.subscribe(`{"toolsListChanged":true}`)
				m.Caller = gatewaytest.Caller("ana")
				m.Caller.Credential = gatewaytest.RevokedWhen(func() bool { return revoked })
				stream := g.Stream(m)
				say <- subscription(acknowledged, "")
				stream.Next()
				synctest.Wait()
				revoked = tt.revoke
				g.Policy.Change(func() { g.Policy.Access.CouldAllow = tt.revoke })
				say <- subscription("tools/list_changed", "")
				if got := stream.Next(); got != "" {
					t.Errorf("the client got %s", got)
				}
				stream.End()
			})
		})
	}
}

// A subscription ends when the server answers it. If the answer is an error and comes before the first message, the
// response to the client has the error's HTTP status.
func TestSubscribe_EndsWithTheAnswerOfTheServer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer func(upstream.Request) (upstream.Answer, error)
		status int
		want   string
	}{
		"a result": {func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"resultType":"complete","_meta":{"dev.sluice/x":1}}`), nil
		}, 200, `"result":{"resultType":"complete","_meta":{}}`},
		"an unknown method": {func(r upstream.Request) (upstream.Answer, error) {
			a := gatewaytest.ErrorAnswer(r, `{"code":-32601,"message":"no"}`)
			a.Status = 404
			return a, nil
		}, 404, `"code":-32601`},
		"requests": {func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"inputRequests":{"a":{"method":"roots/list"}}}`), nil
		}, 200, `"code":"outcome_unknown"`},
		"no answer": {func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNoAnswer }, 200, `"code":"upstream_unavailable"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.StartModern(t, gatewaytest.Methods()...)
				g.Files().Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					return tt.answer(r)
				}
				if got := g.Do(address{"files", ""}.subscribe("{}")); got.Status != tt.status || !strings.Contains(got.Text, tt.want) {
					t.Errorf("%d %s", got.Status, got.Text)
				}
				g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
					events([]byte(subscription(acknowledged, "")))
					return tt.answer(r)
				}
				got := g.Do(address{"files", ""}.subscribe("{}"))
				if len(got.Events) != 1 || got.Events[0] != subscription(acknowledged, "") {
					t.Errorf("after the acknowledgement: %q, %s", got.Events, got.Text)
				}
				if isRefusal := strings.Contains(tt.want, "outcome_unknown") || strings.Contains(tt.want, "upstream_unavailable"); isRefusal != (got.Text == "") {
					t.Errorf("the stream ends with %q", got.Text)
				}
			})
		})
	}
}

// Case X4. A caller may have 64 subscription streams at a time. Each resource in a subscription counts as a message.
func TestSubscribe_IsLimited(t *testing.T) {
	t.Parallel()
	forEachAddress(t, gatewaytest.Methods(), func(t *testing.T, g *gatewaytest.Gateway, at address) {
		streams(g.Files())
		g.Files().Listen = func(ctx context.Context, to upstream.Listener) error { to.Opened(); <-ctx.Done(); return ctx.Err() }
		var open []*gatewaytest.Stream
		for range 64 {
			open = append(open, g.Stream(at.subscribe(`{"toolsListChanged":true}`)))
		}
		synctest.Wait()
		if got := g.Do(at.subscribe(`{"toolsListChanged":true}`)); got.Code() != "abuse_limited" || !strings.Contains(got.Text, "subscriptions") {
			t.Errorf("one more stream: %d %s", got.Status, got.Text)
		}
		for _, stream := range open {
			if stream.Ended() {
				t.Error("an earlier stream has ended")
			}
			stream.HangUp()
			stream.End()
		}
		again := g.Stream(at.subscribe(`{"toolsListChanged":true}`))
		synctest.Wait()
		if again.Ended() {
			reply, _ := again.End()
			t.Errorf("after the other streams have ended: %s", reply.Text)
		}
		again.HangUp()
		again.End()
	})
}

func TestSubscribe_ResourcesBeyondTheQuotaAreNotDecided(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t, gatewaytest.Methods()...)
		g.Do(gatewaytest.ModernCall("safe", "")) // makes the server known
		g.Files().Respond(`{}`)
		before := len(g.Policy.Decided())
		for range 10_000 - 5 - 2 { // the call was a probe, and the subscription also counts
			if g.Pipeline.CountExempt(exempt()) != nil {
				t.Fatal("the quota is used up")
			}
		}
		g.Do(address{"files", ""}.subscribe(`{"resourceSubscriptions":["a"` + strings.Repeat(`,"b"`, 99) + `]}`))
		if decided := len(g.Policy.Decided()) - before; decided != 5 {
			t.Errorf("%d resources were decided", decided)
		}
	})
}
