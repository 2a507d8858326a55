package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// shellRun is the run id for all calls by `sluice call`, so that the calls in a shell loop share the limits of one
// session.
const shellRun = "sluice-cli"

func (t *tool) call() *cobra.Command {
	var pairs []string
	var raw string
	c := &cobra.Command{
		Use:   "call SERVER TOOL",
		Short: "Call a tool through the mesh, as the agent",
		Long: `Call a tool through the mesh, as the agent, and print the result. The command exits with 1 if
the call is refused or the tool reports an error.`,
		Example: "  " + t.self + " call demo list_notes\n" +
			"  " + t.self + " call demo create_note --arg title=Milk --arg body='two bottles'",
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
	c.Flags().StringArrayVar(&pairs, "arg", nil, "an argument as NAME=VALUE; VALUE is JSON, or otherwise text; may be repeated")
	t.asFlag(c)
	c.Flags().StringVar(&raw, "args", "", "all arguments as one JSON object; - reads standard input")
	return c
}

// callArguments returns the arguments of a call as a JSON object. They come from the pairs in --arg or from the value
// of --args.
func callArguments(pairs []string, raw string) (jsontext.Value, error) {
	if raw != "" && len(pairs) > 0 {
		return nil, usageError{errors.New("--arg and --args can't be used together: use one of them")}
	}
	if raw == "-" {
		text, err := readInput(os.Stdin)
		if err != nil {
			return nil, err
		}
		raw = text
	}
	if raw != "" {
		return jsonObject("args", raw)
	}
	members := make(map[string]jsontext.Value, len(pairs))
	for _, pair := range pairs {
		name, text, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, usageError{fmt.Errorf("--arg must be NAME=VALUE, is %q", pair)}
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

// jsonObject parses a JSON object in a flag's value. The error for invalid JSON contains the position.
func jsonObject(flag, raw string) (jsontext.Value, error) {
	var value jsontext.Value
	if err := json.Unmarshal([]byte(raw), &value); err != nil {
		return nil, usageError{fmt.Errorf("--%s is not JSON: %w", flag, err)}
	}
	if value.Kind() != '{' {
		return nil, usageError{fmt.Errorf("--%s is not a JSON object", flag)}
	}
	return value, nil
}

func (t *tool) runCall(ctx context.Context, server, toolName string, arguments jsontext.Value) error {
	s, err := t.connectMCP(ctx, server)
	if err != nil {
		return err
	}
	defer s.close(ctx)
	result, err := s.request(ctx, "tools/call", map[string]any{
		"name": toolName, "arguments": arguments, "_meta": map[string]string{"dev.sluice/run": shellRun},
	})
	if err != nil {
		return err
	}
	return t.printResult(result)
}

type toolResult struct {
	IsError bool             `json:"isError"`
	Content []jsontext.Value `json:"content"`
	Meta    struct {
		Decision struct {
			ID   string `json:"id"`
			Code string `json:"code"`
		} `json:"dev.sluice/decision"`
	} `json:"_meta"`
}

// printResult prints a result as JSON or in readable form. It returns an error if the tool failed or the call was
// refused.
func (t *tool) printResult(raw jsontext.Value) error {
	var result toolResult
	if err := json.Unmarshal(raw, &result); err != nil {
		return fmt.Errorf("read the result: %w", err)
	}
	var err error
	if t.json() {
		err = t.printJSON(raw)
	} else {
		t.printText(result)
	}
	if err == nil && result.IsError {
		return errSilent
	}
	return err
}

func (t *tool) printText(result toolResult) {
	w := t.out
	if result.IsError {
		w = t.errOut
	}
	for _, content := range result.Content {
		var piece struct {
			Type string `json:"type"`
			Text string `json:"text"`
		}
		if err := json.Unmarshal(content, &piece); err != nil || piece.Type != "text" {
			piece.Text = string(content)
		}
		fmt.Fprintln(w, safetext.Lines(piece.Text))
	}
	if d := result.Meta.Decision; d.ID != "" {
		_ = oneLine(w, "decision %s (%s): %s decisions show %s", d.ID, d.Code, t.self, d.ID)
	}
}

func (t *tool) connectMCP(ctx context.Context, server string) (*session, error) {
	if t.as != "" {
		return t.connectAs(ctx, server, t.as)
	}
	f, err := t.load()
	if err != nil {
		return nil, err
	}
	token, err := t.readToken(f, agentToken)
	if err != nil {
		return nil, err
	}
	client, err := t.mcpClient(f)
	if err != nil {
		return nil, err
	}
	return openSession(ctx, client, t.endpointURL(f, server), token)
}

// endpointURL returns the MCP URL of a server, or of all servers if the name is empty. The URL begins with SLUICE_URL
// if it is set, and otherwise with the address in the configuration.
func (t *tool) endpointURL(f *config.File, server string) string {
	if base, ok := app.Env("SLUICE_URL"); ok && base != "" {
		return strings.TrimSuffix(base, "/") + mcpPath(server)
	}
	return mcpURL(f, server)
}
