package allservers_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// greeting is the result of initialize for a server with tools, prompts and resources.
const greeting = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{"listChanged":true},"resources":{"subscribe":true},"logging":{}},"serverInfo":{"name":"x","version":"1"},"instructions":"Mind."}`

// newGateway returns a gateway that is not started yet. It has two servers, "files" and "notes", which support the
// revisions that use sessions. The gateway's policy denies no method.
func newGateway(t *testing.T) *gatewaytest.Gateway {
	t.Helper()
	g := gatewaytest.New(t)
	g.Servers["notes"] = gatewaytest.NewServer(t)
	for _, s := range g.Servers {
		own := s.Open
		s.Open = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() == "server/discover" {
				return own(r)
			}
			return gatewaytest.Result(r, greeting), nil
		}
	}
	g.Policy.Access.Methods = gatewaytest.Methods()
	return g
}

func startGateway(t *testing.T) *gatewaytest.Gateway {
	t.Helper()
	g := newGateway(t)
	g.Start()
	return g
}

// client is an MCP client that uses the URL for all servers.
type client struct {
	*gatewaytest.Gateway

	// session contains the header that identifies the client's session. It is nil for a client of revision 2026-07-28,
	// which has no session.
	session http.Header
}

// message returns a request with the given method. In revision 2026-07-28, name is the value of the name header. params
// contains members of the request's params. Either may be empty.
func (c client) message(method, name, params string) gatewaytest.Message {
	if c.session == nil {
		return gatewaytest.Modern(method, name, params).To("")
	}
	return gatewaytest.Plain(method, "{"+params+"}").To("").In(c.session)
}

func (c client) do(method, name, params string) gatewaytest.Reply {
	return c.Do(c.message(method, name, params))
}

func (c client) call(tool string) gatewaytest.Reply {
	return c.do("tools/call", tool, `"name":"`+tool+`"`)
}

// list sends a request without params and returns the response.
func (c client) list(method string) string { return c.do(method, "", "").Text }

// connect returns a client that has opened a session and declares all capabilities.
func connect(g *gatewaytest.Gateway) client {
	return client{g, g.ConnectAs(gatewaytest.Message{Body: gatewaytest.InitializeAll})}
}

// forEachFamily runs the function story in two subtests: one for a client of revision 2026-07-28, and one for a client
// that uses sessions.
func forEachFamily(t *testing.T, prepare func(*gatewaytest.Gateway), story func(t *testing.T, c client)) {
	t.Helper()
	for name, modern := range map[string]bool{"with sessions": false, "2026-07-28": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newGateway(t)
				prepare(g)
				g.Start()
				c := client{Gateway: g}
				if !modern {
					c = connect(g)
				}
				story(t, c)
			})
		})
	}
}

func asIs(*gatewaytest.Gateway) {}

// lists sets the tools that the server returns when the gateway lists them for itself and not on behalf of a client.
func lists(s *gatewaytest.Server, tools string) {
	own := s.Discovery
	s.Discovery = func(r upstream.Request) (upstream.Answer, error) {
		if r.Method() == "tools/list" {
			return gatewaytest.Result(r, `{"tools":[`+tools+`]}`), nil
		}
		return own(r)
	}
}

func tool(name string) string { return `{"name":"` + name + `","inputSchema":{"type":"object"}}` }

// resultOf returns the members of the result in a response.
func resultOf(response string) string {
	_, result, _ := strings.Cut(response, `"result":{`)
	return strings.TrimPrefix(strings.TrimSuffix(result, "}}"), `"resultType":"complete","ttlMs":0,"cacheScope":"private",`)
}
