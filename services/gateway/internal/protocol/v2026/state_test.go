package v2026_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	v2026 "github.com/sluice-mesh/sluice/services/gateway/internal/protocol/v2026"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// exempt returns a message from the caller ana for which no rule is needed.
func exempt() pipeline.ExemptMessage {
	return pipeline.ExemptMessage{Principal: gatewaytest.Caller("ana").Principal, Method: "ping"}
}

func TestNew_NeedsNoSecretOfACertainLength(t *testing.T) {
	t.Parallel()
	for _, secret := range [][]byte{nil, []byte("s"), make([]byte, 100)} {
		if p, err := v2026.New(secret); err != nil || p == nil {
			t.Errorf("a secret of %d bytes: %v", len(secret), err)
		}
	}
}

// Case S1. The gateway stores a state for a caller in place of a session. Callers that the policy distinguishes do not
// share a state. A stateless server receives the client's description with each message, so one state serves all
// clients of a caller. For a server that uses sessions, and at the URL for all servers, each client has a separate
// state for each set of capabilities.
func TestState_IsSharedOnlyWhereThatRevealsNothing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		server     func(testing.TB) *gatewaytest.Server
		at         address
		forClients int
	}{
		"a server without sessions":                 {gatewaytest.NewModernServer, address{"files", ""}, 1},
		"a server with sessions":                    {gatewaytest.NewServer, address{"files", ""}, 3},
		"all servers, of which one has no sessions": {gatewaytest.NewModernServer, address{"", "files__"}, 3},
		"all servers, of which one has sessions":    {gatewaytest.NewServer, address{"", "files__"}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.New(t)
				g.Servers["files"] = tt.server(t)
				g.Policy.Access.Methods = []string{"sampling/createMessage"}
				g.Start()
				call := tt.at.call("safe", "")
				do := func(m gatewaytest.Message) {
					if got := g.Do(m); got.Code() != "" {
						t.Fatalf("%s", got.Text)
					}
				}
				for range 2 {
					do(call)
				}
				if n := g.Sessions.Len(); n != 1 {
					t.Errorf("one client has %d states", n)
				}
				do(call.Replace(`"name":"c"`, `"name":"other"`))
				do(call.Replace(`"sampling":{},`, ""))
				if n := g.Sessions.Len(); n != tt.forClients {
					t.Errorf("three clients have %d states, want %d", n, tt.forClients)
				}
				before := g.Sessions.Len()
				do(call.From("ben"))
				grouped := call
				grouped.Caller = gatewaytest.Caller("ana")
				grouped.Caller.Principal.Groups = []string{"admins"}
				do(grouped)
				if n := g.Sessions.Len(); n != before+2 {
					t.Errorf("two other callers have %d states", n-before)
				}
				for _, state := range g.Sessions.List(gatewaytest.Tenant) {
					if state.InFlight != 0 {
						t.Errorf("a state is in use by %d requests", state.InFlight)
					}
				}
			})
		})
	}
}

// A server that uses sessions receives the client's capabilities once, when its session is opened. The policy changes,
// so that the server may use other capabilities. The gateway opens another session.
func TestState_HasAnotherSessionWhenTheCapabilitiesChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.New(t)
		g.Policy.Access.Methods = []string{"sampling/createMessage"}
		g.Start()
		call := everywhere.call("safe", "")
		for range 2 {
			g.Do(call)
		}
		g.Policy.Allow()
		if got := g.Do(call); got.Code() != "" {
			t.Errorf("%s", got.Text)
		}
		opened := g.Files().Opened()
		if len(opened) != 2 || !strings.Contains(string(opened[0].Body()), `"sampling"`) || strings.Contains(string(opened[1].Body()), `"sampling"`) {
			t.Errorf("%d sessions were opened", len(opened))
		}
	})
}

// At the URL for all servers, the gateway does not declare the context capability for sampling to a server, because the
// context would contain other servers' messages.
func TestState_AtAllServersDeclaresNoContext(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		at   address
		want bool
	}{"one server": {address{"files", ""}, true}, "all servers": {everywhere, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.StartModern(t, "sampling/createMessage")
				g.Do(tt.at.call("safe", "").Replace(`"sampling":{}`, `"sampling":{"context":{},"tools":{}}`))
				if sent := last(g.Files()); strings.Contains(sent, `"context":{}`) != tt.want || !strings.Contains(sent, `"tools":{}`) {
					t.Errorf("the server got %s", sent)
				}
			})
		})
	}
}

// A client cannot refer to a state by its id, and cannot end another caller's state.
func TestState_CannotBeNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t)
		g.Do(gatewaytest.ModernCall("safe", ""))
		state := g.Sessions.List(gatewaytest.Tenant)[0]
		if state.Version != "2026-07-28" || state.Client.Name != "c" || state.Agent != "dev" || len(state.ID) != 64 {
			t.Errorf("%+v", state.Session)
		}
		other := gatewaytest.StartModern(t)
		other.Do(gatewaytest.ModernCall("safe", ""))
		if again := other.Sessions.List(gatewaytest.Tenant)[0]; again.ID == state.ID {
			t.Error("the id of the state is the same in another gateway")
		}
	})
}

// If the caller may not have another state, the message is refused.
func TestState_IsLimitedLikeSessions(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]address{"one server": {"files", ""}, "all servers": {"", "files__"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.New(t)
				g.Servers["files"] = gatewaytest.NewModernServer(t)
				g.MaxSessions = 1
				g.Start()
				release := make(chan struct{})
				g.Files().Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					<-release
					return gatewaytest.Result(r, `{"content":[]}`), nil
				}
				first := g.Stream(at.call("safe", ""))
				synctest.Wait()
				other := at.call("safe", "")
				other.Caller = gatewaytest.Caller("ana")
				other.Caller.Principal.Groups = []string{"admins"}
				if got := g.Do(other); got.Code() != "too_many_sessions" {
					t.Errorf("while the only state is in use: %s", got.Text)
				}
				close(release)
				first.End()
				if got := g.Do(other); got.Code() != "" {
					t.Errorf("an idle state makes room: %s", got.Text)
				}
			})
		})
	}
}
