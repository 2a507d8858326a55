package signin_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/sluice-mesh/sluice/services/e2e/npm"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
)

// unusedCallback is the redirect URI of clients whose redirects the browser of the tests reads itself.
const unusedCallback = "http://127.0.0.1:1/callback"

// signInTimeout is the maximum time of a sign-in with a call.
const signInTimeout = 2 * time.Minute

// clients returns functions that sign in with an MCP client and call the tool safe.
func clients() map[string]func(t *testing.T, url string, p provider) error {
	return map[string]func(*testing.T, string, provider) error{
		"typescript-sdk":   useTypeScript(npm.TypeScriptSDK),
		"typescript-sdk-2": useTypeScript(npm.TypeScriptSDK2),
		"go-sdk":           useGoSDK,
		"mcp-remote":       useMCPRemote,
	}
}

func useTypeScript(version npm.Set) func(*testing.T, string, provider) error {
	return func(t *testing.T, url string, p provider) error {
		t.Helper()
		client := npmtest.NewClient(t, version)
		redirected, err := browse(t.Context(), client.Authorize(url, unusedCallback, p.clientID), unusedCallback)
		if err != nil {
			return err
		}
		if reply := client.FinishAuth(redirected.Get("code"), redirected.Get("iss")); reply.Error != nil {
			return reply.Error
		}
		reply := client.CallTool(npmtest.ToolCall{Name: "safe"})
		if reply.Error != nil {
			return reply.Error
		}
		var result struct {
			IsError bool `json:"isError"`
		}
		if err := json.Unmarshal(reply.Result, &result); err != nil || result.IsError {
			return fmt.Errorf("the result is %s: %w", reply.Result, err)
		}
		return nil
	}
}

func useGoSDK(t *testing.T, url string, p provider) error {
	t.Helper()
	config := &auth.AuthorizationCodeHandlerConfig{
		RedirectURL: unusedCallback,
		AuthorizationCodeFetcher: func(ctx context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
			redirected, err := browse(ctx, args.URL, unusedCallback)
			return &auth.AuthorizationResult{Code: redirected.Get("code"), State: redirected.Get("state"), Iss: redirected.Get("iss")}, err
		},
		ScopeFilter: func([]string) []string { return []string{"openid"} },
	}
	if p.clientID != "" {
		config.PreregisteredClient = &oauthex.ClientCredentials{ClientID: p.clientID}
	} else {
		config.DynamicClientRegistrationConfig = &auth.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{
			ClientName: "sluice-e2e", RedirectURIs: []string{unusedCallback}, TokenEndpointAuthMethod: "none", GrantTypes: []string{"authorization_code"},
			ResponseTypes: []string{"code"}, Scope: "openid",
		}}
	}
	handler, err := auth.NewAuthorizationCodeHandler(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), signInTimeout)
	defer cancel()
	return callSafe(ctx, &mcp.StreamableClientTransport{Endpoint: url, OAuthHandler: handler})
}

// callSafe connects the Go SDK over a transport and calls the tool safe.
func callSafe(ctx context.Context, over mcp.Transport) error {
	defer http.DefaultClient.CloseIdleConnections()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "signin", Version: "1"}, nil).Connect(ctx, over, nil)
	if err != nil {
		return err
	}
	defer session.Close()
	result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "safe", Arguments: map[string]any{}})
	if err != nil {
		return err
	}
	if result.IsError {
		return fmt.Errorf("the result is %+v", result)
	}
	return nil
}

// useMCPRemote starts mcp-remote as a client that supports only stdio does. mcp-remote prints the URL at which the
// person signs in, and receives the redirect itself.
func useMCPRemote(t *testing.T, url string, p provider) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), signInTimeout)
	defer cancel()
	command, dir := npmtest.MCPRemoteWithSignIn(t, url, p.clientID), t.TempDir()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = []string{"HOME=" + dir, "MCP_REMOTE_CONFIG_DIR=" + dir, "PATH=" + dir} // no program opens a real browser
	said, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	visited := make(chan error, 1)
	go func() { visited <- visitPrintedURL(ctx, said) }()
	err = callSafe(ctx, &mcp.CommandTransport{Command: cmd})
	cancel()
	return errors.Join(err, <-visited)
}

// visitPrintedURL visits the first line that is a URL of an authorization endpoint. It reads all lines.
func visitPrintedURL(ctx context.Context, said io.Reader) error {
	var text strings.Builder
	err := errors.New("mcp-remote has printed no URL of an authorization endpoint")
	visited := false
	for lines := bufio.NewScanner(said); lines.Scan(); {
		at := strings.TrimSpace(lines.Text())
		text.WriteString(at + "\n")
		if !visited && strings.HasPrefix(at, "http") && strings.Contains(at, "code_challenge=") {
			visited = true
			_, err = browse(ctx, at, "http://localhost")
		}
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, text.String())
	}
	return nil
}
