package clientconfig_test

import (
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
)

// A name with quotes and dots stays one name in TOML.
func TestManaged_CodexAllowsTheExactCommands(t *testing.T) {
	t.Parallel()
	codex, _ := clientconfig.Find("codex")
	entries := []clientconfig.Entry{
		{Name: `a."b`, Command: "/opt/sluice", Args: []string{"stdio", "--server", "a"}, Wrapped: true},
		{Name: `a."b`, Command: "/opt/sluice", Args: []string{"stdio", "--server", "other"}, Wrapped: true},
		{Name: "direct", Command: "npx"},
		{Name: "off", Command: "/opt/sluice", Args: []string{"stdio"}, Wrapped: true, Disabled: true},
	}
	managed, err := codex.Managed("linux", entries)
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
	if len(file.Servers) != 1 || got.Executable != "/opt/sluice" || len(got.Args) != 3 || got.Args[2].Match != "exact" || got.Args[2].Value != "a" {
		t.Errorf("the file is\n%s", managed.Content)
	}
}

func TestManaged_GeminiListsTheAllowedNames(t *testing.T) {
	t.Parallel()
	gemini, _ := clientconfig.Find("gemini")
	managed, err := gemini.Managed("windows", []clientconfig.Entry{{Name: "a", Command: `C:\sluice.exe`, Args: []string{"stdio"}, Wrapped: true}})
	if err != nil {
		t.Fatal(err)
	}
	if text := string(managed.Content); managed.Path != `C:\ProgramData\gemini-cli\settings.json` || !strings.Contains(text, `"allowed": [`) || !strings.Contains(text, `C:\\sluice.exe`) {
		t.Errorf("%s is\n%s", managed.Path, text)
	}
}
