package clientconfig

import (
	"time"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// Clients returns all known clients, sorted by ID.
func Clients() []Client {
	return []Client{
		claudeCode(), claudeDesktop(), cline(), codex(), continueDev(), copilot(), cursor(), gemini(), goose(), jetBrains(),
		openCode(), vsCode(), windsurf(), zed(),
	}
}

// jsonDialect returns the dialect that most clients use. The parameter container is the path of the map of servers.
func jsonDialect(container ...string) dialect {
	return dialect{
		layout: configedit.Layout{Format: configedit.JSON}, containers: [][]string{container},
		typeKey: "type", command: "command", args: "args", env: "env", cwd: "cwd", url: "url", headers: "headers",
		httpTypes: []string{"http", "streamable-http", "streamableHttp", "streamable_http"}, sseTypes: []string{"sse"},
		disabled: "disabled",
	}
}

func claudeCode() Client {
	d := jsonDialect("mcpServers")
	d.projects, d.httpType, d.variables = "projects", "http", dollarBraces
	d.unsupported = map[string]string{
		"headersHelper": "gets its headers from a program that only the client starts",
		"oauth":         "signs in with an OAuth client of its own",
	}
	return Client{
		ID: "claude-code", Name: "Claude Code", HTTP: true, dialect: d, project: []string{".mcp.json"},
		Limits: Limits{ToolName: 128, Call: 100_000 * time.Second},
		user: func(s System) []string {
			return []string{s.join(s.env("CLAUDE_CONFIG_DIR", s.Home), ".claude.json")}
		},
	}
}

func claudeDesktop() Client {
	return Client{
		ID: "claude-desktop", Name: "Claude Desktop", dialect: jsonDialect("mcpServers"), Limits: Limits{Call: time.Minute},
		user: func(s System) []string {
			const name = "claude_desktop_config.json"
			paths := []string{s.appData("Claude", name)}
			if s.OS == "windows" { // an installation from an MSIX package has its own copy of APPDATA
				local := s.env("LOCALAPPDATA", s.home("AppData", "Local"))
				paths = append(paths, s.join(local, "Packages", "Claude_pzs8sxrjxfjjc", "LocalCache", "Roaming", "Claude", name))
			}
			return paths
		},
	}
}

func cline() Client {
	d := jsonDialect("mcpServers")
	d.httpType, d.otherType, d.variables, d.bareURL = "streamableHttp", "transportType", envBraces, SSE
	d.unsupported = map[string]string{
		"transport":   "describes its connection in a nested map",
		"oauth":       "signs in with an OAuth client of its own",
		"oauthClient": "signs in with an OAuth client of its own",
	}
	return Client{
		ID: "cline", Name: "Cline", HTTP: true, dialect: d, Limits: Limits{Call: time.Minute},
		user: func(s System) []string {
			const name = "cline_mcp_settings.json"
			data := s.env("CLINE_DATA_DIR", s.home(".cline", "data"))
			return []string{
				s.env("CLINE_MCP_SETTINGS_PATH", s.join(data, "settings", name)),
				// Earlier versions of the extension used this path, because they did not share their file with the command line.
				s.appData("Code", "User", "globalStorage", "saoudrizwan.claude-dev", "settings", name),
			}
		},
	}
}

func codex() Client {
	d := dialect{
		layout: configedit.Layout{Format: configedit.TOML}, containers: [][]string{{"mcp_servers"}},
		command: "command", args: "args", env: "env", cwd: "cwd", url: "url", headers: "http_headers", enabled: "enabled",
		variableLists: []string{"env_vars"}, variableMaps: []string{"env_http_headers"},
		variableKeys: []string{"bearer_token_env_var"},
		unsupported:  map[string]string{"bearer_token": "has a token that Codex does not accept in the file"},
	}
	return Client{
		ID: "codex", Name: "Codex", HTTP: true, dialect: d, project: []string{".codex/config.toml"},
		Limits: Limits{Call: time.Minute},
		user: func(s System) []string {
			return []string{s.join(s.env("CODEX_HOME", s.home(".codex")), "config.toml")}
		},
	}
}

func continueDev() Client {
	d := jsonDialect("mcpServers")
	d.layout = configedit.Layout{Format: configedit.YAML, NameKey: "name"}
	d.stdioType, d.httpType, d.headers, d.headersIn = "stdio", "streamable-http", "headers", "requestOptions"
	d.variables = secretBraces
	d.unsupported = map[string]string{
		"uses":   "is defined by a block of the Continue hub",
		"apiKey": "signs in with a key that only the client adds to requests",
	}
	return Client{
		ID: "continue", Name: "Continue", HTTP: true, dialect: d, Limits: Limits{Call: time.Minute},
		project: []string{".continue/mcpServers/*.yaml"},
		user:    func(s System) []string { return []string{s.home(".continue", "config.yaml")} },
	}
}

func copilot() Client {
	d := jsonDialect("mcpServers")
	d.stdioType, d.httpType, d.variables = "local", "http", dollar
	d.added = configedit.Object{{Name: "tools", Value: []string{"*"}}}
	return Client{
		ID: "copilot", Name: "GitHub Copilot CLI", HTTP: true, dialect: d, project: []string{".mcp.json", ".github/mcp.json"},
		user: func(s System) []string {
			return []string{s.join(s.env("COPILOT_HOME", s.home(".copilot")), "mcp-config.json")}
		},
	}
}

func cursor() Client {
	d := jsonDialect("mcpServers")
	d.variables = envBraces
	d.unsupported = map[string]string{
		"envFile": "reads environment variables from a file",
		"auth":    "signs in with an OAuth client of its own",
	}
	return Client{
		ID: "cursor", Name: "Cursor", HTTP: true, dialect: d, project: []string{".cursor/mcp.json"},
		user: func(s System) []string { return []string{s.home(".cursor", "mcp.json")} },
	}
}

func gemini() Client {
	d := jsonDialect("mcpServers")
	d.url, d.otherURL, d.variables = "httpUrl", "url", dollar
	d.unsupported = map[string]string{
		"authProviderType": "signs in with credentials of Google Cloud",
		"oauth":            "signs in with an OAuth client of its own",
		"tcp":              "is connected by WebSocket",
	}
	return Client{
		ID: "gemini", Name: "Gemini CLI", HTTP: true, dialect: d, project: []string{".gemini/settings.json"},
		Limits: Limits{ToolName: 63, Call: 10 * time.Minute},
		user: func(s System) []string {
			return []string{s.join(s.env("GEMINI_CLI_HOME", s.Home), ".gemini", "settings.json")}
		},
	}
}

func goose() Client {
	d := dialect{
		layout: configedit.Layout{Format: configedit.YAML}, containers: [][]string{{"extensions"}}, name: "name",
		typeKey: "type", stdioType: "stdio", httpType: "streamable_http", command: "cmd", args: "args", env: "envs", url: "uri",
		headers: "headers", httpTypes: []string{"streamable_http"}, sseTypes: []string{"sse"}, enabled: "enabled",
		builtinTypes: []string{"builtin", "platform", "frontend", "inline_python"}, variables: dollar,
		unsupported: map[string]string{"env_keys": "reads secrets from the keychain of the client"},
		added:       configedit.Object{{Name: "description", Value: ""}, {Name: "enabled", Value: true}},
	}
	return Client{
		ID: "goose", Name: "Goose", HTTP: true, dialect: d, Limits: Limits{Call: 5 * time.Minute},
		user: func(s System) []string {
			if s.OS == "windows" {
				return []string{s.appData("Block", "goose", "config", "config.yaml")}
			}
			return []string{s.xdg("goose", "config.yaml")}
		},
	}
}

// jetBrains returns the client JetBrains Junie. It does not cover the AI Assistant, which stores its servers in the
// settings of the IDE.
func jetBrains() Client {
	return Client{
		ID: "jetbrains", Name: "JetBrains Junie", dialect: jsonDialect("mcpServers"), project: []string{".junie/mcp/mcp.json"},
		user: func(s System) []string { return []string{s.home(".junie", "mcp", "mcp.json")} },
	}
}

func openCode() Client {
	d := dialect{
		layout: configedit.Layout{Format: configedit.JSON}, containers: [][]string{{"mcp"}, {"mcp", "servers"}},
		typeKey: "type", stdioType: "local", httpType: "remote", command: "command", commandHasArgs: true, env: "environment",
		cwd: "cwd", url: "url", headers: "headers", httpTypes: []string{"remote"}, enabled: "enabled", disabled: "disabled",
		variables:   openCodeBraces,
		unsupported: map[string]string{"oauth": "signs in with an OAuth client of its own"},
	}
	return Client{
		ID: "opencode", Name: "OpenCode", HTTP: true, dialect: d, Limits: Limits{Call: time.Minute},
		project: []string{"opencode.json", "opencode.jsonc", ".opencode/opencode.json", ".opencode/opencode.jsonc"},
		user: func(s System) []string {
			return []string{s.xdg("opencode", "opencode.json"), s.xdg("opencode", "opencode.jsonc")}
		},
	}
}

func vsCode() Client {
	d := jsonDialect("servers")
	d.stdioType, d.httpType, d.variables = "stdio", "http", envBraces
	d.unsupported = map[string]string{"envFile": "reads environment variables from a file"}
	return Client{
		ID: "vscode", Name: "VS Code", HTTP: true, dialect: d, project: []string{".vscode/mcp.json"}, Limits: Limits{Tools: 128},
		user: func(s System) []string { return []string{s.appData("Code", "User", "mcp.json")} },
	}
}

func windsurf() Client {
	d := jsonDialect("mcpServers")
	d.url, d.otherURL, d.variables = "serverUrl", "url", envBraces
	return Client{
		ID: "windsurf", Name: "Windsurf", HTTP: true, dialect: d, Limits: Limits{Tools: 100},
		user: func(s System) []string { return []string{s.home(".codeium", "windsurf", "mcp_config.json")} },
	}
}

func zed() Client {
	d := jsonDialect("context_servers")
	d.enabled, d.disabled = "enabled", ""
	d.unsupported = map[string]string{"settings": "is provided by an extension of Zed"}
	return Client{
		ID: "zed", Name: "Zed", HTTP: true, dialect: d, Limits: Limits{Call: time.Minute},
		user: func(s System) []string {
			switch s.OS {
			case "windows":
				return []string{s.appData("Zed", "settings.json")}
			case "darwin":
				return []string{s.home(".config", "zed", "settings.json")}
			default:
				return []string{s.xdg("zed", "settings.json")}
			}
		},
	}
}
