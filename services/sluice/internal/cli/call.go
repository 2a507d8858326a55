package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
)

// shellRun is the run that every `sluice call` declares, so that a loop in a
// shell meets the limits that one session would.
const shellRun = "sluice-cli"

// protocolVersion is the revision that sessions ask for; a newer one would first
// be probed for, and each probe refused on record.
const protocolVersion = "2025-11-25"

// maxRefusal is how much is read of why a request was turned away, in bytes.
const maxRefusal = 64 << 10

// decisionKey is where a refusal carries its decision.
const decisionKey = "dev.sluice/decision"

func (t *tool) call() *cobra.Command {
	var pairs []string
	var raw string
	c := &cobra.Command{
		Use:   "call SERVER TOOL",
		Short: "Call a tool through the mesh, as the agent",
		Example: `  sluice call demo list_notes
  sluice call demo create_note --arg title=Milk --arg body='two bottles'
  sluice call demo run_report --args '{"save": true}'`,
		Args:              args(cobra.ExactArgs(2)),
		ValidArgsFunction: t.completeServer,
		RunE: func(c *cobra.Command, given []string) error {
			arguments, err := callArguments(pairs, raw)
			if err != nil {
				return err
			}
			return t.runCall(c.Context(), given[0], given[1], arguments)
		},
	}
	c.Flags().StringArrayVar(&pairs, "arg", nil, "an argument as NAME=VALUE; a value that is JSON is taken as such, anything else as text")
	c.Flags().StringVar(&raw, "args", "", "all arguments as one JSON object; - reads it from standard input")
	return c
}

// callArguments builds the arguments' JSON text of the flags.
func callArguments(pairs []string, raw string) (jsontext.Value, error) {
	if raw != "" && len(pairs) > 0 {
		return nil, usageError{errors.New("give --args or --arg, not both")}
	}
	if raw == "-" {
		text, err := readAll(os.Stdin)
		if err != nil {
			return nil, err
		}
		raw = text
	}
	if raw != "" {
		value := jsontext.Value(raw)
		if !value.IsValid() || value.Kind() != '{' {
			return nil, usageError{errors.New("--args is not a JSON object")}
		}
		return value, nil
	}
	members := make(map[string]jsontext.Value, len(pairs))
	for _, pair := range pairs {
		name, text, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, usageError{fmt.Errorf("--arg %q is not of the form NAME=VALUE", pair)}
		}
		value := jsontext.Value(text)
		if !value.IsValid() {
			quoted, err := jsontext.AppendQuote(nil, text)
			if err != nil {
				return nil, usageError{fmt.Errorf("--arg %s is not valid UTF-8", name)}
			}
			value = quoted
		}
		members[name] = value
	}
	return json.Marshal(members, json.Deterministic(true))
}

func (t *tool) runCall(ctx context.Context, server, toolName string, arguments jsontext.Value) error {
	session, err := t.connectMCP(ctx, server)
	if err != nil {
		return err
	}
	defer session.Close() //nolint:errcheck // the answer is all that matters
	result, err := session.CallTool(ctx, &mcp.CallToolParams{
		Name: toolName, Arguments: arguments, Meta: mcp.Meta{"dev.sluice/run": shellRun},
	})
	if err != nil {
		return fmt.Errorf("call %s on %s: %w", toolName, server, err)
	}
	if err := t.printResult(result); err != nil {
		return err
	}
	if result.IsError {
		return errSilent
	}
	return nil
}

func (t *tool) printResult(result *mcp.CallToolResult) error {
	if t.json() {
		raw, err := result.MarshalJSON()
		if err != nil {
			return fmt.Errorf("print the result: %w", err)
		}
		return t.printJSON(jsontext.Value(raw))
	}
	w := t.out
	if result.IsError {
		w = t.errOut
	}
	for _, content := range result.Content {
		if text, ok := content.(*mcp.TextContent); ok {
			fmt.Fprintln(w, text.Text)
			continue
		}
		raw, err := content.MarshalJSON()
		if err != nil {
			return fmt.Errorf("print the result: %w", err)
		}
		fmt.Fprintln(w, string(raw))
	}
	if decision, ok := result.Meta[decisionKey].(map[string]any); ok {
		fmt.Fprintf(w, "decision %v (%v): sluice decisions show %v\n", decision["id"], decision["code"], decision["id"])
	}
	return nil
}

// connectMCP opens a session with a server behind the mesh, as the agent.
func (t *tool) connectMCP(ctx context.Context, server string) (*mcp.ClientSession, error) {
	f, err := t.load()
	if err != nil {
		return nil, err
	}
	token, err := secret(f, agentToken)
	if err != nil {
		return nil, err
	}
	url := t.edgeURL(f, server)
	client := mcp.NewClient(&mcp.Implementation{Name: "sluice", Version: app.Version()}, nil)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint:             url,
		HTTPClient:           &http.Client{Transport: withToken{token: token}},
		MaxRetries:           -1,
		DisableStandaloneSSE: true,
	}, &mcp.ClientSessionOptions{ProtocolVersion: protocolVersion})
	if refused, ok := errors.AsType[edgeError](err); ok {
		return nil, fmt.Errorf("%s: %w", url, refused)
	}
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", url, err)
	}
	return session, nil
}

// edgeURL is where a server is served: below SLUICE_URL, else where the
// configuration says.
func (t *tool) edgeURL(f *config.File, server string) string {
	if base, ok := app.Env("SLUICE_URL"); ok && base != "" {
		return strings.TrimSuffix(base, "/") + "/mcp/" + server
	}
	return mcpURL(f, server)
}

// withToken sends the agent's token with every request.
type withToken struct{ token string }

// RoundTrip implements http.RoundTripper.
func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+w.token)
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusServiceUnavailable:
		return nil, refusedBy(resp)
	default:
		return resp, nil
	}
}

// edgeError is a request that the edge turned away, in its own words.
type edgeError string

// Error implements error.
func (e edgeError) Error() string { return string(e) }

// refusedBy reads why the edge turned a request away, which clients of MCP keep
// to themselves.
func refusedBy(resp *http.Response) error {
	defer resp.Body.Close() //nolint:errcheck // what could be read is all that matters
	var answer struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	err := json.UnmarshalRead(io.LimitReader(resp.Body, maxRefusal), &answer)
	if err != nil || answer.Error.Message == "" {
		return edgeError(resp.Status)
	}
	return edgeError(printable(answer.Error.Message))
}
