package v2026_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
)

type address struct {
	// server is the server's name in the URL, or empty for the URL for all servers. prefix is the prefix that the
	// server's tool names have at that URL.
	server, prefix string
}

// call returns a call to a tool. arguments contains the members of the params that follow the member name, and may be
// empty.
func (a address) call(tool, arguments string) gatewaytest.Message {
	return gatewaytest.ModernCall(a.prefix+tool, arguments).To(a.server)
}

// forEachAddress runs the function story in a subtest for each combination of a URL and a kind of server. The URLs are
// the URL for one server and the URL for all servers. The kinds are a server that uses sessions and a stateless server.
// The gateway is already started, and its policy allows the given methods.
func forEachAddress(t *testing.T, methods []string, story func(t *testing.T, g *gatewaytest.Gateway, at address)) {
	t.Helper()
	for name, at := range map[string]address{"one server": {"files", ""}, "all servers": {"", "files__"}} {
		for kind, server := range map[string]func(testing.TB) *gatewaytest.Server{"without sessions": gatewaytest.NewModernServer, "with sessions": gatewaytest.NewServer} {
			t.Run(name+", a server "+kind, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					g := gatewaytest.New(t)
					g.Servers["files"] = server(t)
					g.Policy.Access.Methods = methods
					g.Start()
					story(t, g, at)
				})
			})
		}
	}
}

// last returns the last request that the server has received, or "" if there is none.
func last(s *gatewaytest.Server) string {
	if all := s.Requests(); len(all) > 0 {
		return all[len(all)-1]
	}
	return ""
}

// patient changes the client's name in the message so that the gateway holds the client's calls while they wait for an
// approval.
func patient(m gatewaytest.Message) gatewaytest.Message {
	return m.Replace(`"name":"c"`, `"name":"`+gatewaytest.Patient+`"`)
}

// takesTasks returns the message with a declaration that the client accepts tasks.
func takesTasks(m gatewaytest.Message) gatewaytest.Message {
	return m.Replace(`"tasks":{}`, `"extensions":{"io.modelcontextprotocol/tasks":{}}`)
}

// between returns the text between begin and end.
func between(text, begin, end string) string {
	_, rest, _ := strings.Cut(text, begin)
	found, _, _ := strings.Cut(rest, end)
	return found
}
