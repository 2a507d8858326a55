package clientconfig_test

import (
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
)

// A server's name contains quotes and dots. In the TOML file, it is nevertheless a single key.
func TestManaged_CodexAllowsTheExactCommands(t *testing.T) {
	t.Parallel()
	codex, _ := clientconfig.Find("codex")
	entries := []clientconfig.Entry{
		{Name: `a."b`, Command: "/link/sluice", Args: []string{"x"}, Wrapped: true, Relay: &clientconfig.Relay{Server: "a", As: "codex"}},
		{Name: `a."b`, Wrapped: true, Relay: &clientconfig.Relay{Server: "other", As: "codex"}},
		{Name: "direct", Command: "npx"},
		{Name: "false", Command: "/opt/sluice", Args: []string{"stdio"}, NamesSluice: true, Fault: "is another program"},
		{Name: "off", Wrapped: true, Disabled: true, Relay: &clientconfig.Relay{As: "codex"}},
		{Name: "shared", Scope: clientconfig.Project, Wrapped: true, Relay: &clientconfig.Relay{Server: "a", As: "codex"}},
	}
	managed, err := codex.Managed("linux", "/opt/sluice", entries)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Servers map[string]struct {
			Identity struct {
				Command struct {
					Executable string
					Args       []struct{ Match, Value string }
				}
			}
		} `toml:"mcp_servers"`
	}
	if err := toml.Unmarshal(managed.Content, &file); err != nil {
		t.Fatal(err)
	}
	got := file.Servers[`a."b`].Identity.Command
	if len(file.Servers) != 1 || got.Executable != "/opt/sluice" || len(got.Args) != 5 || got.Args[2].Match != "exact" || got.Args[2].Value != "a" {
		t.Errorf("the file is\n%s", managed.Content)
	}
}

func TestManaged_GeminiListsTheAllowedNames(t *testing.T) {
	t.Parallel()
	gemini, _ := clientconfig.Find("gemini")
	managed, err := gemini.Managed("windows", `C:\sluice.exe`, []clientconfig.Entry{{Name: "a", Wrapped: true, Relay: &clientconfig.Relay{As: "gemini"}}})
	if err != nil {
		t.Fatal(err)
	}
	if text := string(managed.Content); managed.Path != `C:\ProgramData\gemini-cli\settings.json` || !strings.Contains(text, `"allowed": [`) || !strings.Contains(text, `C:\\sluice.exe`) {
		t.Errorf("%s is\n%s", managed.Path, text)
	}
}
