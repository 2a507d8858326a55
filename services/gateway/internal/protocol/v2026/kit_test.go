package v2026_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
)

// address is a URL to which a client sends its messages.
type address struct {
	// server is the name in the URL; empty for the URL of all servers. prefix is the prefix of the server's tools there.
	server, prefix string
}

// call returns a call of a tool. arguments are members of the params after the name; they may be empty.
func (a address) call(tool, arguments string) gatewaytest.Message {
	return gatewaytest.ModernCall(a.prefix+tool, arguments).To(a.server)
}

// forEachAddress calls story in a subtest for each URL and each family of revisions of the server files, with a started
// gateway whose policy does not deny these methods.
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

// last returns the last request that the server has received; empty if there is none.
func last(s *gatewaytest.Server) string {
	if all := s.Requests(); len(all) > 0 {
		return all[len(all)-1]
	}
	return ""
}

// patient returns the message as one of a client whose calls are held.
func patient(m gatewaytest.Message) gatewaytest.Message {
	return m.Replace(`"name":"c"`, `"name":"`+gatewaytest.Patient+`"`)
}

// takesTasks returns the message as one of a client that accepts tasks.
func takesTasks(m gatewaytest.Message) gatewaytest.Message {
	return m.Replace(`"tasks":{}`, `"extensions":{"io.modelcontextprotocol/tasks":{}}`)
}

// between returns the text between begin and end.
func between(text, begin, end string) string {
	_, rest, _ := strings.Cut(text, begin)
	found, _, _ := strings.Cut(rest, end)
	return found
}
