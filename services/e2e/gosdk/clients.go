// Package gosdk provides the official Go SDK's client and test server to tests.
package gosdk

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// Bearer is a [http.RoundTripper] that sends a token with every request.
type Bearer struct{ Token string }

// RoundTrip implements [http.RoundTripper].
func (b Bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.Token)
	return http.DefaultTransport.RoundTrip(r)
}

// Connect connects a client to an endpoint with an agent's token. The caller must close the client.
func Connect(t *testing.T, url string) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "reader", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: url, HTTPClient: &http.Client{Transport: Bearer{Token: stack.AgentToken}}, DisableStandaloneSSE: true,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return session
}

// EchoSample responds to a sampling request with the text of the request.
//
//nolint:staticcheck // see ConnectInteractive
func EchoSample(_ context.Context, r *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
	text, _ := r.Params.Messages[0].Content.(*mcp.TextContent)
	return &mcp.CreateMessageResult{Role: "assistant", Model: "m", Content: &mcp.TextContent{Text: "re: " + text.Text}}, nil
}

// ConnectInteractive connects a client that responds to requests from the server. The returned channel receives a
// string for each elicitation and for each notification of a changed list. The caller must close the client.
func ConnectInteractive(t *testing.T, transport mcp.Transport) (c *mcp.ClientSession, heard <-chan string) {
	t.Helper()
	hears := make(chan string, 100)
	client := mcp.NewClient(&mcp.Implementation{Name: "attending", Version: "1"}, &mcp.ClientOptions{
		CreateMessageHandler: EchoSample, //nolint:staticcheck // revision 2026-07-28 deprecates sampling, and earlier revisions have it
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			hears <- "asked " + r.Params.Message
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"username": "ana", "name": "ana"}}, nil
		},
		ToolListChangedHandler:   func(context.Context, *mcp.ToolListChangedRequest) { hears <- "tools changed" },
		PromptListChangedHandler: func(context.Context, *mcp.PromptListChangedRequest) { hears <- "prompts changed" },
	})
	c, err := client.Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, hears
}

// StreamingTransport returns an HTTP transport to an endpoint, with an agent's token. The transport also opens the
// stream for messages that do not belong to a request.
func StreamingTransport(url string) mcp.Transport {
	return &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: Bearer{Token: stack.AgentToken}}}
}

// StdioTransport returns a transport that runs `sluice stdio` for a server of the mesh. Clients that can only start
// programs connect in the same way.
func StdioTransport(t *testing.T, s *stack.Stack, server string) mcp.Transport {
	t.Helper()
	c := exec.CommandContext(t.Context(), stack.Program(t, "sluice"), "stdio", "--server", server)
	c.Dir, c.Env = t.TempDir(), append(os.Environ(), "SLUICE_URL="+s.URL, "SLUICE_TOKEN="+stack.AgentToken)
	return &mcp.CommandTransport{Command: c}
}
