package clientconfig_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
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

// If the time were quadratic in the number of projects, the file would take longer than the limit.
func TestEntries_ManyProjects(t *testing.T) {
	t.Parallel()
	const projects = 60_000
	var b strings.Builder
	b.WriteString(`{"projects": {`)
	for i := range projects {
		fmt.Fprintf(&b, `"/work/%06d": {"mcpServers": {"a": {"command": "x"}}},`, i)
	}
	b.WriteString(`"/": {}}}`)
	start := time.Now()
	found := entries(t, "claude-code", b.String())
	if took := time.Since(start); took > 10*time.Second || len(found) != projects {
		t.Errorf("%d entries in %s", len(found), took)
	}
	if e := found[projects-1]; e.Project != "/work/059999" || strings.Join(e.Path, " ") != "projects /work/059999 mcpServers a" {
		t.Errorf("%+v", e)
	}
}

// Gemini CLI has a key for each transport, and newer versions have one URL and a type.
func TestEntries_TheTypeDecidesTheTransportOfGemini(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]clientconfig.Transport{
		`"url": "https://x.example/"`:                         clientconfig.SSE,
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
