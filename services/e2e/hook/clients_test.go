package hook_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/scripted"
)

// A client is an MCP client from npm that can run without a terminal and with a model that the test provides.
type client struct {
	id string
	// program is the path of the program in node_modules. A program that ends with .js is started with node.
	program string
	// tool is the name of the tool that runs commands, and arg is the name of that tool's argument. host is the tool's
	// name in the policy.
	tool, arg, host string
	// args and env return the arguments and the environment variables for a run that uses the model at a URL.
	args, env func(url string) []string
}

const prompt = "Make the calls."

// clientLimit is the maximum duration of one run of a client.
const clientLimit = 5 * time.Minute

func claudeCode(rules ...string) client {
	return client{
		id: "claude-code", program: "@anthropic-ai/claude-code-linux-x64/claude", tool: "Bash", arg: "command", host: "Bash",
		args: func(string) []string { return append([]string{"-p", prompt, "--allowedTools"}, rules...) },
		env: func(url string) []string {
			return []string{"ANTHROPIC_BASE_URL=" + url, "ANTHROPIC_API_KEY=none", "DISABLE_AUTOUPDATER=1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1"}
		},
	}
}

func codex(flags ...string) client {
	return client{
		id: "codex", program: "@openai/codex/bin/codex.js", tool: "exec_command", arg: "cmd", host: "Bash",
		args: func(url string) []string {
			return append(append([]string{"exec", "--skip-git-repo-check", "--sandbox", "danger-full-access"}, codexSettings(url)...), append(flags, prompt)...)
		},
	}
}

// codexSettings returns the flags that make Codex use the model at a URL.
func codexSettings(url string) []string {
	return []string{
		"-c", `model_provider="scripted"`, "-c", `model="scripted"`, "-c", "check_for_update_on_startup=false",
		"-c", "analytics.enabled=false", "--disable", "plugins", "--disable", "apps",
		"-c", `model_providers.scripted={name="scripted", base_url="` + url + `/v1", wire_api="responses"}`,
	}
}

func gemini(flags ...string) client {
	return client{
		id: "gemini", program: "@google/gemini-cli/bundle/gemini.js", tool: "run_shell_command", arg: "command", host: "run_shell_command",
		args: func(string) []string { return append([]string{"-m", "gemini-2.5-flash", "-p", prompt}, flags...) },
		env: func(url string) []string {
			return []string{"GOOGLE_GEMINI_BASE_URL=" + url, "GEMINI_API_KEY=none", "GEMINI_CLI_NO_RELAUNCH=true"}
		},
	}
}

// geminiSettings contains settings that suppress the questions that Gemini CLI asks when it starts.
const geminiSettings = `{"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": false},
  "general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false}}
`

// touch returns the model's request to run the command `touch NAME`.
func (c client) touch(name string) scripted.Call {
	return scripted.Call{Tool: c.tool, Args: `{` + strconv.Quote(c.arg) + `: "touch ` + name + `"}`}
}

// command returns the command that runs the client in the project with the given model.
func (h *home) command(ctx context.Context, c client, m *scripted.Model, args []string) *exec.Cmd {
	command := append([]string{filepath.Join(os.Getenv("SLUICE_TEST_CLIENTS"), c.program)}, args...)
	if strings.HasSuffix(command[0], ".js") {
		command = append([]string{"node"}, command...)
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = h.path("project"), slices.Concat(h.env, m.Env()), 5*time.Second
	if c.env != nil {
		cmd.Env = append(cmd.Env, c.env(m.URL)...)
	}
	return cmd
}

// begin starts a client with a model that asks the client to touch files. The function that begin returns waits until
// the client has exited, and returns the results of the calls.
func (h *home) begin(c client, names ...string) func() []string {
	h.t.Helper()
	var calls []scripted.Call
	for _, name := range names {
		calls = append(calls, c.touch(name))
	}
	return h.beginCalls(c, calls...)
}

// beginCalls starts a client with a model that requests the given calls. It returns the same kind of function as begin.
func (h *home) beginCalls(c client, calls ...scripted.Call) func() []string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), clientLimit)
	m := scripted.New(h.t, calls...)
	cmd := h.command(ctx, c, m, c.args(m.URL))
	var printed strings.Builder
	cmd.Stdout, cmd.Stderr = &printed, &printed
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	return func() []string {
		h.t.Helper()
		defer cancel()
		err, seen := cmd.Wait(), m.Seen()
		if err != nil || len(seen.Results) != len(calls) {
			h.t.Fatalf("%s made %d of %d calls: %v\ntools: %q\n%s\n%s", c.id, len(seen.Results), len(calls), err, seen.Declared, seen.Log, printed.String())
		}
		return seen.Results
	}
}

// needsClients skips a test if the clients are not installed.
func needsClients(t *testing.T) {
	t.Helper()
	if os.Getenv("SLUICE_TEST_CLIENTS") == "" {
		t.Skip("run make test-clients, which sets SLUICE_TEST_CLIENTS")
	}
}
