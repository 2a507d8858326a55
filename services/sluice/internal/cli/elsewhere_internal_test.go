package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/tokenhttp"
)

// answeringServer answers each POST request with the entry of bodies for the JSON-RPC method in the request. If bodies
// has no such entry, it answers with the given status and an empty body.
func answeringServer(t *testing.T, status int, bodies map[string]string) *meshElsewhere {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		for method, body := range bodies {
			if strings.Contains(string(raw), `"`+method+`"`) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, body)
				return
			}
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	return &meshElsewhere{url: server.URL, token: "token", client: tokenhttp.New(nil, "")}
}

func TestListedServers_ReturnsOnlyNamesOfServers(t *testing.T) {
	t.Parallel()
	m := answeringServer(t, http.StatusAccepted, map[string]string{
		"initialize": `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","serverInfo":{"name":"sluice"}}}`,
		"tools/list": `{"jsonrpc":"2.0","id":1,"result":{"tools":[
			{"name":"notes__a"},{"name":"notes__b__c"},{"name":"sluice_approval_wait"},{"name":"my-2-notes__a"},
			{"name":"--config__a"},{"name":"../x__a"},{"name":"A__a"},{"name":"__a"},{"name":"` + strings.Repeat("a", 33) + `__a"}]}}`,
	})
	got, err := m.listedServers(t.Context())
	if want := []string{"my-2-notes", "notes"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("the servers are %q, %v; want %q", got, err, want)
	}
}

func TestListedServers_RefusesTooManyServers(t *testing.T) {
	t.Parallel()
	tools := make([]string, maxElsewhereServers+1)
	for i := range tools {
		tools[i] = fmt.Sprintf(`{"name":"s%d__a"}`, i)
	}
	m := answeringServer(t, http.StatusAccepted, map[string]string{
		"initialize": `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","serverInfo":{"name":"sluice"}}}`,
		"tools/list": `{"jsonrpc":"2.0","id":1,"result":{"tools":[` + strings.Join(tools, ",") + `]}}`,
	})
	if got, err := m.listedServers(t.Context()); err == nil || !strings.Contains(err.Error(), "lists 1001 servers") || got != nil {
		t.Errorf("%d servers, %v", len(got), err)
	}
}

// Each server is either not a gateway, or a gateway that does not accept the token.
func TestListedServers_NamesTheProblem(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, want string
		status     int
		bodies     map[string]string
	}{
		{"another MCP server", "is not a Sluice gateway", http.StatusAccepted, map[string]string{
			"initialize": `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","serverInfo":{"name":"github"}}}`,
		}},
		{"a page", "is not a Sluice gateway", http.StatusOK, map[string]string{"initialize": "<html>"}},
		{"a proxy that wants a sign-in", "is not a Sluice gateway: it answered 401", http.StatusUnauthorized, nil},
		{"a proxy without its server", "is not a Sluice gateway: it answered 502", http.StatusBadGateway, nil},
		{"a port with TLS", "https://", http.StatusBadRequest, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := answeringServer(t, tt.status, tt.bodies).listedServers(t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.want) || got != nil {
				t.Errorf("%q, %v; want an error with %q", got, err, tt.want)
			}
		})
	}
}
