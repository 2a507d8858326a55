package npmtest

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/e2e/npm"
)

// toolFailed is the exit code of the inspector if a tool's result has isError.
const toolFailed = 5

// Inspector runs the command line of the official MCP inspector. Each call starts a process with its own session. The
// command line has no option for progress or for a timeout, so calls ignore the fields Progress and Timeout. The
// methods are safe for concurrent use.
type Inspector struct {
	t                testing.TB
	node, cli        string
	url, token, home string
}

// NewInspector returns an Inspector for the Streamable HTTP endpoint at url, with a bearer token.
func NewInspector(t testing.TB, url, token string) *Inspector {
	t.Helper()
	return &Inspector{
		t: t, node: Node(t), url: url, token: token, home: t.TempDir(),
		cli: Install(t, npm.Inspector).Module("@modelcontextprotocol/inspector/clients/launcher/build/index.js"),
	}
}

// CallTool sends `tools/call` and waits for the result. It uses only the call's name and arguments. If the inspector
// fails, the error is named InspectorError and contains the inspector's exit code.
func (i *Inspector) CallTool(call ToolCall) Reply {
	args, err := json.Marshal(call.Arguments)
	if err != nil {
		return Reply{Error: &Error{Name: "HarnessError", Message: err.Error()}}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(i.t.Context()), replyTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, i.node, i.cli, "--cli", "--server-url", i.url, "--transport", "http",
		"--header", "Authorization: Bearer "+i.token, "--method", "tools/call", "--tool-name", call.Name,
		"--tool-args-json", string(args), "--format", "json", "--stored-auth-only")
	cmd.Dir, cmd.Env = i.home, []string{"HOME=" + i.home, "PATH=" + filepath.Dir(i.node)}
	var out, said bytes.Buffer // standard output and standard error
	cmd.Stdout, cmd.Stderr = &out, &said
	err = cmd.Run()
	exit, exited := errors.AsType[*exec.ExitError](err)
	if err != nil && (!exited || exit.ExitCode() != toolFailed) {
		return Reply{Error: &Error{Name: "InspectorError", Code: int64(cmd.ProcessState.ExitCode()), Message: err.Error() + ": " + said.String()}}
	}
	var answer struct {
		Result jsontext.Value `json:"result"`
	}
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil || answer.Result == nil {
		return Reply{Error: &Error{Name: "InspectorError", Code: int64(cmd.ProcessState.ExitCode()), Message: "the inspector printed " + out.String() + said.String()}}
	}
	return Reply{Result: answer.Result}
}

// Tools lists the tools and calls one of them.
func (i *Inspector) Tools(try FeatureUse) FeatureResult {
	i.t.Helper()
	listed := members(i.t, i.output("tools/list"), "tools", "name")
	return FeatureResult{Listed: listed, Text: i.CallTool(ToolCall{Name: try.Name, Arguments: try.Arguments}).ToolResult(i.t).Text()}
}

// Resources lists the resources and reads one of them.
func (i *Inspector) Resources(try FeatureUse) FeatureResult {
	i.t.Helper()
	listed := members(i.t, i.output("resources/list"), "resources", "uri")
	return FeatureResult{Listed: listed, Text: string(i.output("resources/read", "--uri", try.URI))}
}

// Prompts lists the prompts and gets one of them.
func (i *Inspector) Prompts(try FeatureUse) FeatureResult {
	i.t.Helper()
	listed := members(i.t, i.output("prompts/list"), "prompts", "name")
	return FeatureResult{Listed: listed, Text: string(i.output("prompts/get", "--prompt-name", try.Name))}
}

// output sends a request with the inspector's command line and returns the result.
func (i *Inspector) output(method string, args ...string) jsontext.Value {
	i.t.Helper()
	said := output(i.t, append([]string{
		i.cli, "--cli", "--server-url", i.url, "--transport", "http", "--header", "Authorization: Bearer " + i.token,
		"--method", method, "--format", "json", "--stored-auth-only",
	}, args...)...)
	var answer struct {
		Result jsontext.Value `json:"result"`
	}
	if err := json.Unmarshal(said, &answer); err != nil {
		i.t.Fatalf("the inspector printed %s", said)
	}
	return answer.Result
}
