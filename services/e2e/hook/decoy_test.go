package hook_test

import (
	"strings"
	"testing"
)

// A cloned project configures two MCP servers that are behind the mesh. In tool names, Codex replaces hyphens with
// underscores. Therefore one of these servers has the same name there as a server of the user that is not behind the
// mesh. Codex reads the project's configuration only if the user trusts the project. Therefore the hook does not let a
// call pass because of the configuration of an untrusted project.
func TestHooks_IgnoreEntriesThatCodexDoesNotRead(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.write(".config/sluice/sluice.yaml", `{listen: "127.0.0.1:0", grpc: "127.0.0.1:0", data: "`+h.path(".local/share/sluice")+`", servers: {notes: {stdio: {command: ["`+h.program+`", demo-server, --stdio]}}}}`)
	relay := func(name, more string) string {
		return "[mcp_servers." + name + "]\ncommand = \"" + h.program + "\"\nargs = [\"stdio\", \"--server\", \"notes\", \"--as\", \"codex\"" + more + "]\n"
	}
	direct := "[mcp_servers.my-mail]\ncommand = \"npx\"\n"
	h.write(".codex/config.toml", direct+relay("my-notes", `, "--config", "`+h.path(".config/sluice/sluice.yaml")+`"`))
	h.write("app/.codex/config.toml", relay("my_mail", "")+relay("shared", ""))
	run := func(tool string) output {
		return h.run(strings.Replace(h.event(tool, `{}`), `"cwd":"`+h.dir, `"cwd":"`+h.path("app/src"), 1), "hook", "codex")
	}
	h.silent("with a hyphen", run("mcp__my_notes__list"))
	h.denies("not trusted", run("mcp__shared__list"), "not in the files")
	h.denies("direct, not trusted", run("mcp__my_mail__list"), "without the mesh")
	for level, want := range map[string]string{"untrusted": "not in the files", "trusted": ""} {
		h.write(".codex/config.toml", direct+"[projects.\""+h.path("app")+"\"]\ntrust_level = \""+level+"\"\n")
		if want == "" {
			h.silent(level, run("mcp__shared__list"))
		} else {
			h.denies(level, run("mcp__shared__list"), want)
		}
		h.denies("direct, "+level, run("mcp__my_mail__list"), "without the mesh")
	}
}
