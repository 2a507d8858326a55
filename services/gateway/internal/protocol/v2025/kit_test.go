package v2025_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
)

const (
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	ping        = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
)

// forEachAddress runs the function story in two subtests: one for the URL for one server, and one for the URL for all
// servers. prefix is the prefix that the server's tool names have at that URL.
func forEachAddress(t *testing.T, story func(t *testing.T, server, prefix string)) {
	t.Helper()
	for name, at := range map[string][2]string{"one server": {"files", ""}, "all servers": {"", "files__"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { story(t, at[0], at[1]) })
		})
	}
}

// initialize returns an initialize request with the given revision and capabilities.
func initialize(server, version, capabilities string) gatewaytest.Message {
	return gatewaytest.Message{
		Server: server,
		Body:   `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"` + version + `","capabilities":` + capabilities + `,"clientInfo":{"name":"c","version":"1"}}}`,
	}
}

func message(server, body string, session http.Header) gatewaytest.Message {
	return gatewaytest.Message{Server: server, Body: body}.In(session)
}

// declared returns the capabilities object in an initialize request that a server has received.
func declared(request string) string {
	_, rest, _ := strings.Cut(request, `"capabilities":`)
	capabilities, _, _ := strings.Cut(rest, `,"clientInfo"`)
	return capabilities
}
