package v2026_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// newSubscribers returns a started gateway with two servers that have resources. The server files is stateless, and the
// server notes uses sessions.
func newSubscribers(t *testing.T) *gatewaytest.Gateway {
	t.Helper()
	g := gatewaytest.New(t)
	g.Servers["files"], g.Servers["notes"] = gatewaytest.NewModernServer(t), gatewaytest.NewServer(t)
	g.Files().Open = func(r upstream.Request) (upstream.Answer, error) {
		if r.Method() != "server/discover" {
			return gatewaytest.ErrorAnswer(r, `{"code":-32601,"message":"no"}`), nil
		}
		return gatewaytest.Result(r, `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"resources":{"subscribe":true}},"resultType":"complete"}`), nil
	}
	g.Policy.Access.Methods = gatewaytest.Methods()
	g.Start()
	return g
}

var everywhere = address{"", "files__"}

// Case T4. One subscription contains the resources of several servers. The gateway acknowledges those notifications
// that the policy allows and the servers support.
func TestSubscribeAll_ForwardsResourcesOfTheirServers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newSubscribers(t)
		say := streams(g.Files())
		stream := g.Stream(everywhere.subscribe(`{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["mcp.files+file:///a","mcp.none+file:///a","file:///a","mcp.files+","mcp.notes+x:y"]}`))
		want := subscription(acknowledged, `,"notifications":{"toolsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["mcp.files+file:///a"]}`)
		if got := stream.Next(); got != want {
			t.Errorf("(-want +got):\n%s", cmp.Diff(want, got))
		}
		synctest.Wait()
		if sent := last(g.Files()); !strings.HasSuffix(sent, `"notifications":{"toolsListChanged":false,"promptsListChanged":false,"resourcesListChanged":true,"resourceSubscriptions":["file:///a"]}}}`) {
			t.Errorf("files got %s", sent)
		}
		for _, message := range []string{
			subscription(acknowledged, ""), strings.Replace(subscription("resources/updated", `,"uri":"file:///a"`), ":7", ":8", 1), subscription("resources/updated", `,"uri":"file:///b"`),
			subscription("tools/list_changed", ""), subscription("resources/updated", `,"uri":"file:///a"`), subscription("resources/list_changed", ""),
		} {
			say <- message
		}
		for _, want := range []string{subscription("resources/updated", `,"uri":"mcp.files+file:///a"`), subscription("resources/list_changed", "")} {
			if got := stream.Next(); got != want {
				t.Errorf("the client got %s, want %s", got, want)
			}
		}
		if len(g.Servers["notes"].Opened()) != 0 {
			t.Error("notes, which offers no resources, was contacted")
		}
		for _, state := range g.Sessions.List(gatewaytest.Tenant) {
			if state.Members != nil && state.InFlight != 0 { // a member is in use while its server may send notifications
				t.Errorf("the stream keeps the state in use: %d requests", state.InFlight)
			}
		}
		if intents := g.Journal.Records(journal.KindIntent); len(intents) != 1 || intents[0].Server != "files" || intents[0].Tool != "file:///a" {
			t.Errorf("on record is %+v", intents)
		}
		g.Sessions.CloseStreams()
		if got := stream.Next(); got != "" {
			t.Errorf("after its end the client got %s", got)
		}
		stream.End()
	})
}

// If no server supports the requested notifications, the subscription is acknowledged without them.
func TestSubscribeAll_LeavesOutWhatNoServerOffers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.New(t)
		g.Policy.Access.Methods = gatewaytest.Methods()
		g.Start()
		stream := g.Stream(everywhere.subscribe(`{"promptsListChanged":true,"resourcesListChanged":true}`))
		if got := stream.Next(); got != subscription(acknowledged, `,"notifications":{}`) {
			t.Errorf("the client got %s", got)
		}
		stream.HangUp()
		stream.End()
	})
}

// If a client has subscribed to list changes, the gateway itself notifies the client of changed lists.
func TestSubscribeAll_NotifiesOfChangedLists(t *testing.T) {
	t.Parallel()
	for notifications, want := range map[string][]string{
		`{"toolsListChanged":true}`: {subscription("tools/list_changed", "")}, `{"promptsListChanged":true}`: nil, `{}`: nil,
		`{"resourcesListChanged":true}`: {subscription("resources/list_changed", "")},
	} {
		t.Run(notifications, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newSubscribers(t)
				stream := g.Stream(everywhere.subscribe(notifications))
				stream.Next()
				synctest.Wait() // waits until the gateway has read the state of all lists
				g.Policy.Change(func() {
					g.Policy.Access.PolicyRevision, g.Policy.Access.ResourcesAlike = "next", false
				})
				time.Sleep(time.Minute)
				stream.HangUp()
				stream.End()
				var got []string
				for message := stream.Next(); message != ""; message = stream.Next() {
					got = append(got, message)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The gateway opens no session with a server for a client that only requests lists. It subscribes to changes of a
// server's lists once the client has used the server.
func TestSubscribeAll_SubscribesToListsOfUsedServers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newSubscribers(t)
		say := streams(g.Files())
		stream := g.Stream(everywhere.subscribe(`{"resourcesListChanged":true}`))
		stream.Next()
		synctest.Wait()
		if len(g.Files().Requests()) != 0 {
			t.Errorf("files got %q", g.Files().Requests())
		}
		g.Do(everywhere.call("safe", ""))
		say <- subscription("resources/list_changed", "")
		if got := stream.Next(); got != subscription("resources/list_changed", "") {
			t.Errorf("the client got %s", got)
		}
		stream.HangUp()
		stream.End()
	})
}

// If a server's subscription ends, the gateway opens it again, after the policy service has evaluated it again. The
// client is notified that the resources may have changed.
func TestSubscribeAll_IsOpenedAgainWhenItEnds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer func(upstream.Request) (upstream.Answer, error)
		denies bool
		// least and most are the minimum and maximum number of requests that the server must receive in ten minutes.
		least, most int
	}{
		"it has none": {func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.ErrorAnswer(r, `{"code":-32601,"message":"no"}`), nil
		}, false, 1, 1},
		"it has no streams": {func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNoStream }, false, 1, 1},
		"it ends each": {func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"resultType":"complete"}`), nil
		}, false, 10, 20},
		"it fails": {func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNoAnswer }, false, 10, 20},
		"policy denies then": {func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"resultType":"complete"}`), nil
		}, true, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newSubscribers(t)
				var asked atomic.Int64
				g.Files().Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					asked.Add(1)
					return tt.answer(r)
				}
				stream := g.Stream(everywhere.subscribe(`{"resourceSubscriptions":["mcp.files+file:///a"]}`))
				stream.Next()
				synctest.Wait()
				if tt.denies {
					g.Policy.Change(func() { g.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY} })
				}
				if tt.least > 1 {
					if got := stream.Next(); got != subscription("resources/updated", `,"uri":"mcp.files+file:///a"`) {
						t.Errorf("once it is open again the client got %s", got)
					}
				}
				time.Sleep(10 * time.Minute)
				if n := int(asked.Load()); n < tt.least || n > tt.most {
					t.Errorf("files was asked %d times", n)
				}
				stream.HangUp()
				stream.End()
			})
		})
	}
}

// A slow server does not delay the acknowledgement of a subscription.
func TestSubscribeAll_DoesNotWaitForASlowServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newSubscribers(t)
		g.Servers["notes"].Discovery = func(upstream.Request) (upstream.Answer, error) {
			time.Sleep(10 * time.Second)
			return upstream.Answer{}, upstream.ErrTimeout
		}
		begin := time.Now()
		stream := g.Stream(everywhere.subscribe(`{"promptsListChanged":true,"resourceSubscriptions":["mcp.notes+file:///a"]}`))
		if got := stream.Next(); time.Since(begin) > 6*time.Second || strings.Contains(got, "file:///a") || !strings.Contains(got, `"notifications":{"promptsListChanged":true}`) {
			t.Errorf("after %v: %s", time.Since(begin), got)
		}
		stream.HangUp()
		stream.End()
		time.Sleep(time.Minute) // longer than the slow request
	})
}
