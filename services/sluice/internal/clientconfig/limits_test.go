package clientconfig_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

func entries(t *testing.T, client, data string) []clientconfig.Entry {
	t.Helper()
	c, ok := clientconfig.Find(client)
	if !ok {
		t.Fatalf("%s is not known", client)
	}
	found, err := c.Files(systems()["linux"], "")[0].Entries([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestEntries_RefusesAnEntryWithTooManyMembers(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(`{"mcpServers": {"a": {"command": "x"`)
	for i := range 1_000 {
		fmt.Fprintf(&b, `, "k%d": 1`, i)
	}
	b.WriteString(`}}}`)
	e := entries(t, "cursor", b.String())[0]
	if !strings.Contains(e.Reason, "more than 1000 members") {
		t.Errorf("%s: reason %q", e.Name, e.Reason)
	}
}

// The file has 60,000 projects. If reading took time that is quadratic in the number of projects, the test would run
// into its timeout.
func TestEntries_ManyProjects(t *testing.T) {
	t.Parallel()
	const projects = 60_000
	var b strings.Builder
	b.WriteString(`{"projects": {`)
	for i := range projects {
		fmt.Fprintf(&b, `"/work/%06d": {"mcpServers": {"a": {"command": "x"}}},`, i)
	}
	b.WriteString(`"/": {}}}`)
	found := entries(t, "claude-code", b.String()) // in quadratic time, this would take longer than all other tests
	if len(found) != projects {
		t.Fatalf("%d entries", len(found))
	}
	if e := found[projects-1]; e.Project != "/work/059999" || strings.Join(e.Path, " ") != "projects /work/059999 mcpServers a" {
		t.Errorf("%+v", e)
	}
}

// If an entry has a URL but no type, Gemini CLI 0.61.0 connects with Streamable HTTP. The key httpUrl is older than the
// key for the type.
func TestEntries_TheTypeDecidesTheTransportOfGemini(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]clientconfig.Transport{
		`"url": "https://x.example/"`:                         clientconfig.HTTP,
		`"httpUrl": "https://x.example/"`:                     clientconfig.HTTP,
		`"type": "http", "url": "https://x.example/"`:         clientconfig.HTTP,
		`"type": "sse", "url": "https://x.example/"`:          clientconfig.SSE,
		`"type": "http", "httpUrl": "https://x.example/"`:     clientconfig.HTTP,
		`"url": "http://y/", "httpUrl": "https://x.example/"`: clientconfig.HTTP,
	} {
		e := entries(t, "gemini", `{"mcpServers": {"a": {`+data+`}}}`)[0]
		if e.Transport != want || e.URL != "https://x.example/" || (e.Reason == "") != (want == clientconfig.HTTP) {
			t.Errorf("%s: %+v", data, e)
		}
	}
}

// If an entry has a URL but no type, Cline 3.0.65 connects with HTTP+SSE. Cline also reads the type from the key
// transportType.
func TestEntries_TheTypeDecidesTheTransportOfCline(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]clientconfig.Transport{
		`"url": "https://x.example/"`:                                                   clientconfig.SSE,
		`"transportType": "http", "url": "https://x.example/"`:                          clientconfig.HTTP,
		`"transportType": "streamableHttp", "url": "https://x.example/"`:                clientconfig.HTTP,
		`"type": "sse", "transportType": "http", "url": "https://x.example/"`:           clientconfig.SSE,
		`"type": "streamableHttp", "transportType": "sse", "url": "https://x.example/"`: clientconfig.HTTP,
	} {
		e := entries(t, "cline", `{"mcpServers": {"a": {`+data+`}}}`)[0]
		if e.Transport != want || (e.Reason == "") != (want == clientconfig.HTTP) {
			t.Errorf("%s: %+v", data, e)
		}
	}
}

// Cline refuses an entry that has a command but the type of an entry with a URL. Therefore StdioEdit also removes the
// second key for the type.
func TestStdioEdit_RemovesTheSecondType(t *testing.T) {
	t.Parallel()
	c, _ := clientconfig.Find("cline")
	f := c.Files(systems()["linux"], "")[0]
	data := []byte(`{"mcpServers": {"a": {"transportType": "http", "url": "https://x.example/", "timeout": 90}}}`)
	e := entries(t, "cline", string(data))[0]
	change, err := configedit.Apply(f.Layout, data, f.StdioEdit("a", &e, "/opt/sluice", []string{"stdio"}))
	if err != nil {
		t.Fatal(err)
	}
	if after := string(change.After); strings.Contains(after, "transportType") || !strings.Contains(after, `"timeout": 90`) {
		t.Error(after)
	}
}

// Each of these entries has a member because of which the entry can't be changed: a nested map with the connection, a
// token that the client does not accept in the file, or a key that only the client adds to requests.
func TestEntries_NamesCredentialsOfTheClient(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ client, data, reason string }{
		{"cline", `{"mcpServers": {"a": {"transport": {"type": "stdio", "command": "x"}}}}`, "nested map"},
		{"codex", "[mcp_servers.a]\nurl = \"https://x.example/\"\nbearer_token = \"t\"\n", "does not accept"},
		{"continue", "mcpServers:\n  - name: a\n    url: https://x.example/\n    apiKey: k\n", "only the client adds"},
	} {
		if e := entries(t, c.client, c.data)[0]; !strings.Contains(e.Reason, c.reason) {
			t.Errorf("%s: reason %q", c.client, e.Reason)
		}
	}
}

// Windsurf reads the URL from serverUrl or url. An entry that starts a program has neither key.
func TestEntries_WindsurfHasTwoKeysForTheURL(t *testing.T) {
	t.Parallel()
	c, _ := clientconfig.Find("windsurf")
	f := c.Files(systems()["linux"], "")[0]
	for _, key := range []string{"serverUrl", "url"} {
		data := []byte(`{"mcpServers": {"a": {"` + key + `": "https://x.example/mcp", "disabled": true}}}`)
		e := entries(t, "windsurf", string(data))[0]
		if e.Transport != clientconfig.HTTP || e.URL != "https://x.example/mcp" || e.Reason != "" {
			t.Errorf("%s: %+v", key, e)
		}
		change, err := configedit.Apply(f.Layout, data, f.StdioEdit("a", &e, "/opt/sluice", []string{"stdio"}))
		if err != nil {
			t.Fatal(err)
		}
		if after := string(change.After); strings.Contains(after, "x.example") || !strings.Contains(after, `"disabled": true`) {
			t.Errorf("%s: %s", key, after)
		}
	}
}
