package cli_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// commandsWithTokens lists commands whose first request is an HTTP request that contains a token. `sluice tools`
// without a server is not in the list, because it first requests the list of servers over gRPC.
var commandsWithTokens = map[string][]string{
	"call": {"call", "demo", "echo"}, "tools": {"tools", "demo"}, "stdio": {"stdio"},
	"stdio to one": {"stdio", "--server", "demo"},
}

// initializeLine is the first line that a stdio client writes.
const initializeLine = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}` + "\n"

// startTokenCounter starts a server that counts the requests that contain a token. It returns the server's URL and the
// counter.
func startTokenCounter(t *testing.T, answer http.HandlerFunc) (url string, tokens *atomic.Int64) {
	t.Helper()
	tokens = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			tokens.Add(1)
		}
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, tokens
}

// Commands send a token without TLS only to loopback addresses. The proxy in the environment represents an attacker who
// reads the network traffic between the command and the mesh.
func TestToken_CommandSendsItWithoutTLSOnlyToLoopback(t *testing.T) {
	t.Parallel()
	proxy, seen := startTokenCounter(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	for name, args := range commandsWithTokens {
		for _, url := range []string{"http://mesh.evil.example:7777", "http://localhost.evil.example", "http://127.0.0.1@evil.example", "http://2130706433:7777"} {
			ran := stack.Run(t, stack.Command{Args: args, Stdin: initializeLine, Env: []string{
				"SLUICE_TOKEN=" + stack.AgentToken, "SLUICE_URL=" + url, "HTTP_PROXY=" + proxy, "http_proxy=" + proxy, "NO_PROXY=", "no_proxy=",
			}})
			if out := ran.Stdout + ran.Stderr; !strings.Contains(out, "the token is not sent") {
				t.Errorf("%s to %s: %d, %s", name, url, ran.Code, out)
			}
		}
	}
	if n := seen.Load(); n != 0 {
		t.Errorf("the token was sent %d times", n)
	}
}

func TestToken_CommandFollowsNoRedirectWithIt(t *testing.T) {
	t.Parallel()
	elsewhere, seen := startTokenCounter(t, func(http.ResponseWriter, *http.Request) {})
	mesh, _ := startTokenCounter(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere+r.URL.Path+"?key=hidden", http.StatusTemporaryRedirect)
	})
	for name, args := range commandsWithTokens {
		ran := stack.Run(t, stack.Command{Args: args, Stdin: initializeLine, Env: []string{"SLUICE_TOKEN=" + stack.AgentToken, "SLUICE_URL=" + mesh}})
		out := ran.Stdout + ran.Stderr
		if !strings.Contains(out, "no redirect is followed") || !strings.Contains(out, elsewhere) || strings.Contains(out, "hidden") {
			t.Errorf("%s: %d, %s", name, ran.Code, out)
		}
	}
	if n := seen.Load(); n != 0 {
		t.Errorf("the token was sent %d times to the target of a redirect", n)
	}
}

func TestToken_CommandSendsItOverPlaintextGRPCOnlyToLoopback(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"approvals", "list"}, {"status"}, {"decisions", "tail"}, {"doctor"}} {
		for _, host := range []string{"mesh.evil.example", "localhost.evil.example", "2130706433", "0177.0.0.1", "::ffff:192.0.2.1"} {
			ran := stack.Run(t, stack.Command{Args: append(args, "--addr", net.JoinHostPort(host, "7778")), Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}})
			if out := ran.Stdout + ran.Stderr; ran.Code == 0 || !strings.Contains(out, "not on this machine") {
				t.Errorf("%v to %s: %d, %s", args, host, ran.Code, out)
			}
		}
	}
}
