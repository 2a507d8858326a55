package realclients_test

// A client is an MCP client from npm that can run without a terminal and with a model that the test provides.
type client struct {
	id string
	// program is the path of the program in node_modules. A program that ends with .js is started with node.
	program string
	// config is the content of the client's configuration file, which contains one server. file is the path of the
	// configuration file. In config, SLUICE stands for the path of sluice.
	file, config string
	// more contains additional files of the client, by their paths.
	more map[string]string
	// hosts contains other hosts to which the client tries to connect. The client works without them.
	hosts []string
	// declines is true if the client, when it has no terminal, declines all questions that servers ask (elicitation).
	declines bool
	// before returns the arguments of a command that must be run before the client. It is nil if there is no such
	// command.
	before func(url string) []string
	// args and env return the arguments and the environment variables with which the client sends a prompt to the model
	// at a URL.
	args, env func(url string) []string
}

const (
	prompt = "Call the tool once."
	entry  = `{"mcpServers": {"notes": {"command": "SLUICE", "args": ["demo-server", "--stdio"]}}}`
)

func clients() []client {
	return []client{
		{
			id: "claude-code", program: "@anthropic-ai/claude-code-linux-x64/claude", file: ".claude.json", config: entry,
			args: func(string) []string { return []string{"-p", prompt, "--allowedTools", "mcp__notes"} },
			env: func(url string) []string {
				return []string{
					"ANTHROPIC_BASE_URL=" + url, "ANTHROPIC_API_KEY=none", "DISABLE_AUTOUPDATER=1",
					"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "ENABLE_TOOL_SEARCH=false",
					// Without these variables, the client sends its first prompt before servers that need more than 5 s
					// to start are ready.
					"MCP_CONNECTION_NONBLOCKING=false", "MCP_CONNECT_TIMEOUT_MS=60000",
				}
			},
		},
		{
			id: "codex", program: "@openai/codex/bin/codex.js", file: ".codex/config.toml", declines: true,
			// Without "required", Codex sends the first prompt without the tools of servers that need more than 1 s to
			// start.
			config: "[mcp_servers.notes]\ncommand = \"SLUICE\"\nargs = [\"demo-server\", \"--stdio\"]\nrequired = true\n",
			args: func(url string) []string {
				return []string{
					"exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
					"-c", `model_provider="scripted"`, "-c", `model="scripted"`, "-c", "check_for_update_on_startup=false", "--disable", "plugins", "--disable", "apps",
					"-c", "analytics.enabled=false",
					"-c", `model_providers.scripted={name="scripted", base_url="` + url + `/v1", wire_api="responses"}`,
					prompt,
				}
			},
		},
		{
			id: "gemini", program: "@google/gemini-cli/bundle/gemini.js", file: ".gemini/settings.json",
			config: `{"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": false},
				"general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false}, ` + entry[1:],
			args: func(string) []string { return []string{"-m", "gemini-2.5-flash", "--yolo", "-p", prompt} },
			env: func(url string) []string {
				return []string{"GOOGLE_GEMINI_BASE_URL=" + url, "GEMINI_API_KEY=none", "GEMINI_CLI_TRUST_WORKSPACE=true", "GEMINI_CLI_NO_RELAUNCH=true"}
			},
		},
		{
			id: "opencode", program: "opencode-linux-x64/bin/opencode", file: ".config/opencode/opencode.json",
			config: `{"mcp": {"notes": {"type": "local", "command": ["SLUICE", "demo-server", "--stdio"]}}}`,
			args:   func(string) []string { return []string{"run", "-m", "scripted/scripted", prompt} },
			env: func(url string) []string {
				return []string{
					"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1",
					"npm_config_fetch_retries=0", "npm_config_offline=true",
					`OPENCODE_CONFIG_CONTENT={"provider": {"scripted": {"npm": "@ai-sdk/openai-compatible", "models": {"scripted": {}}, ` +
						`"options": {"baseURL": "` + url + `/v1", "apiKey": "none"}}}}`,
				}
			},
		},
		{
			id: "cline", program: "@cline/cli-linux-x64/bin/cline", file: ".cline/data/settings/cline_mcp_settings.json",
			// Without "timeout", Cline ignores servers that need more than 3 s to start.
			config: `{"mcpServers": {"notes": {"command": "SLUICE", "args": ["demo-server", "--stdio"], "timeout": 60}}}`,
			more:   map[string]string{".cline/data/settings/global-settings.json": `{"telemetryOptOut": true, "autoUpdateEnabled": false}`},
			hosts:  []string{"data.cline.bot:443"},
			before: func(url string) []string {
				return []string{"auth", "-p", "openai-compatible", "-k", "none", "-m", "scripted", "-b", url + "/v1"}
			},
			args: func(string) []string { return []string{"-P", "openai-compatible", "-m", "scripted", prompt} },
			env:  func(string) []string { return []string{"CLINE_NO_AUTO_UPDATE=1", "CLINE_SESSION_BACKEND_MODE=local"} },
		},
		{
			id: "copilot", program: "@github/copilot-linux-x64/copilot", file: ".copilot/mcp-config.json", config: entry, declines: true,
			args: func(string) []string { return []string{"--allow-all-tools", "-p", prompt} },
			env: func(url string) []string {
				return []string{"COPILOT_OFFLINE=true", "COPILOT_PROVIDER_BASE_URL=" + url + "/v1", "COPILOT_MODEL=scripted", "COPILOT_AUTO_UPDATE=false"}
			},
		},
	}
}
