package aggregate_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/aggregate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

func TestCombinedTool_IsResolvedToServerAndTool(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 70)
	for _, tt := range []struct{ server, name, want string }{
		{"docs", "search", "docs__search"},
		{"docs", "a__b", "docs__a__b"},
		{"docs", "_", "docs___"},
		{"docs", "create.issue", "docs__create_issue_152d8b45"},
		{"docs", "a/b", "docs__a_b_c14cddc0"},
		{"docs", long, "docs__" + strings.Repeat("x", 33) + "_c71bd109"},
		{strings.Repeat("s", 32), strings.Repeat("x", 30), strings.Repeat("s", 32) + "__xxxxx_666a596d"},
	} {
		got := aggregate.CombinedTool(tt.server, tt.name)
		if got != tt.want || len(got) > 48 {
			t.Errorf("%s of %s: %s", tt.name, tt.server, got)
		}
	}
}

// Case T2.
func TestToolAliases_AmbiguousAliasMeansNoTool(t *testing.T) {
	t.Parallel()
	alias := aggregate.CombinedTool("docs", "a.b")
	_, forged, _ := aggregate.SplitName(alias)
	fine := aggregate.NewToolAliases("docs", []string{"a.b", "c"})
	if name, ok := fine.Resolve("docs", forged); name != "a.b" || !ok {
		t.Errorf("the called tool is %q, %v", name, ok)
	}
	if name, ok := fine.Resolve("docs", "a.b"); name != "a.b" || !ok {
		t.Errorf("by its own name, the called tool is %q, %v", name, ok)
	}
	bad := aggregate.NewToolAliases("docs", []string{"a.b", "c", forged})
	for _, name := range []string{"a.b", forged} {
		if text, ok := bad.DisplayName("docs", name); ok {
			t.Errorf("%s is shown as %s", name, text)
		}
	}
	if _, ok := bad.Resolve("docs", forged); ok {
		t.Error("an ambiguous alias was called")
	}
	if text, ok := bad.DisplayName("docs", "c"); text != "docs__c" || !ok {
		t.Errorf("another tool is shown as %q, %v", text, ok)
	}
}

func TestCombineNames_ReplacesNamesInResponses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, method, raw, want string }{
		{
			"content", "tools/call",
			`{"result":{"content":[{"type":"text","text":"uri","uri":5},{"type":"resource_link","uri":"a:\u0062"}, {"type":"resource","resource":{"uri":"c:d","text":"{\"uri\":\"x\"}"}}],"structuredContent":{"content":[{"uri":"kept:1"}]},"uri":"kept:2"}}`,
			`{"result":{"content":[{"type":"text","text":"uri","uri":5},{"type":"resource_link","uri":"mcp.docs+a:b"}, {"type":"resource","resource":{"uri":"mcp.docs+c:d","text":"{\"uri\":\"x\"}"}}],"structuredContent":{"content":[{"uri":"kept:1"}]},"uri":"kept:2"}}`,
		},
		{
			"messages", "prompts/get",
			`{"result":{"messages":[{"content":{"uri":"a:1"}},{"content":[{"resource":{"uri":"a:2"}}]},{"*":{"content":{"uri":"kept"}}}]}}`,
			`{"result":{"messages":[{"content":{"uri":"mcp.docs+a:1"}},{"content":[{"resource":{"uri":"mcp.docs+a:2"}}]},{"*":{"content":{"uri":"kept"}}}]}}`,
		},
		{"prompts", "prompts/list", `{"result":{"prompts":[{"name":"p","title":"p"},7,{"name":["p"]}]}}`, `{"result":{"prompts":[{"name":"docs__p","title":"docs: p"},7,{"name":["p"]}]}}`},
		{"templates", "resources/templates/list", `{"result":{"resourceTemplates":[{"uriTemplate":"f:///{p}"}]}}`, `{"result":{"resourceTemplates":[{"uriTemplate":"mcp.docs+f:///{p}"}]}}`},
		{"a notification", "notifications/resources/updated", `{"params":{"uri":"a:1"}}`, `{"params":{"uri":"mcp.docs+a:1"}}`},
		{"an error", "tools/call", `{"error":{"code":1,"message":"m","data":{"content":[{"uri":"a"}]}}}`, `{"error":{"code":1,"message":"m","data":{"content":[{"uri":"a"}]}}}`},
		{"another method", "vendor/list", `{"result":{"prompts":[{"name":"p"}]}}`, `{"result":{"prompts":[{"name":"p"}]}}`},
	} {
		edits, err := aggregate.CombineNames("docs", tt.method, []byte(tt.raw))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		got, err := jsonrpc.ApplyEdits([]byte(tt.raw), edits...)
		if diff := cmp.Diff(tt.want, string(got)); err != nil || diff != "" {
			t.Errorf("%s (-want +got):\n%s%v", tt.name, diff, err)
		}
	}
}

// Case U1. The server's name is added to each display name and to each string that the user sees in a form. Values that
// the client sends back to the server are not changed.
func TestCombineNames_MarksTextsForPeople(t *testing.T) {
	t.Parallel()
	const schema, mark = `{"type":"object","properties":{"a":`, `"docs asks: `
	for _, tt := range []struct{ name, method, raw, want string }{
		{
			"a field", "elicitation/create", `{"params":{"message":"m","requestedSchema":` + schema + `{"type":"string","title":"T","description":"one\ntwo","default":"d","pattern":"p"}},"required":["a"]}}}`,
			`{"params":{"message":"docs asks: m","requestedSchema":` + schema + `{"type":"string","title":` + mark + `T","description":` + mark + `one\ndocs asks: two","default":"d","pattern":"p"}},"required":["a"]}}}`,
		},
		{
			"choices", "elicitation/create", `{"params":{"requestedSchema":` + schema + `{"title":"T","oneOf":[{"const":"files","title":"files"}],"enum":["e"],"enumNames":["n"],"items":{"anyOf":[{"const":"c","title":"x"}]}}}}}}`,
			`{"params":{"requestedSchema":` + schema + `{"title":` + mark + `T","oneOf":[{"const":"files","title":` + mark + `files"}],"enum":["e"],"enumNames":[` + mark + `n"],"items":{"anyOf":[{"const":"c","title":` + mark + `x"}]}}}}}}`,
		},
		{
			"fields without a title", "elicitation/create", `{"params":{"requestedSchema":` + schema + `{},"files asks: key":{"type":"string"},"title":{"title":null}}}}}`,
			`{"params":{"requestedSchema":` + schema + `{"title":` + mark + `a"},"files asks: key":{"type":"string","title":` + mark + `files asks: key"},"title":{"title":` + mark + `title"}}}}}`,
		},
		{
			"other keys, nested and in other case", "elicitation/create", `{"params":{"requestedSchema":{"Title":"T","x":[{"y":"z"}],"properties":{"a":{"TITLE":"t","title":"u","markdown":"v"}}}}}`,
			`{"params":{"requestedSchema":{"Title":` + mark + `T","x":[{"y":` + mark + `z"}],"properties":{"a":{"TITLE":` + mark + `t","title":` + mark + `u","markdown":` + mark + `v"}}}}}`,
		},
		{
			"a form in an answer", "tools/call", `{"result":{"inputRequests":{"q":{"method":"elicitation/create","params":{"message":"m","requestedSchema":{"title":"T"}}}}}}`,
			`{"result":{"inputRequests":{"q":{"method":"elicitation/create","params":{"message":"docs asks: m","requestedSchema":{"title":` + mark + `T"}}}}}}`,
		},
		{
			"an id in an error", "tools/call", `{"error":{"code":-32042,"data":{"elicitations":[{"elicitationId":"e","url":"https://x.example"}]}}}`,
			`{"error":{"code":-32042,"data":{"elicitations":[{"elicitationId":"docs:e","url":"https://x.example"}]}}}`,
		},
		{
			"names in content", "tools/call", `{"result":{"content":[{"type":"resource_link","uri":"a:b","name":"n","title":"t","description":"d"}]}}`,
			`{"result":{"content":[{"type":"resource_link","uri":"mcp.docs+a:b","name":"docs: n","title":"docs: t","description":"d"}]}}`,
		},
		{
			"names of resources", "resources/list", `{"result":{"resources":[{"uri":"a:b","name":"n\u2028files: x","title":"t"}]}}`,
			`{"result":{"resources":[{"uri":"mcp.docs+a:b","name":"docs: n\ndocs: files: x","title":"docs: t"}]}}`,
		},
		{"a logger", "notifications/message", `{"params":{"logger":"files","data":"x"}}`, `{"params":{"logger":"docs: files","data":"x"}}`},
		{"a logger that is no text", "notifications/message", `{"params":{"data":{"logger":"x"},"logger":null}}`, `{"params":{"data":{"logger":"x"},"logger":"docs"}}`},
		{"no logger", "notifications/message", `{"params":{}}`, `{"params":{"logger":"docs"}}`},
		{"a context", "sampling/createMessage", `{"params":{"includeContext":"thisServer"}}`, `{"params":{"includeContext":"none"}}`},
	} {
		edits, err := aggregate.CombineNames("docs", tt.method, []byte(tt.raw))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		got, err := jsonrpc.ApplyEdits([]byte(tt.raw), edits...)
		if diff := cmp.Diff(tt.want, string(got)); err != nil || diff != "" {
			t.Errorf("%s (-want +got):\n%s%v", tt.name, diff, err)
		}
	}
	for method, raw := range map[string]string{
		"notifications/elicitation/complete": `{"params":{"elicitationId":["e"]}}`, "notifications/message": `{"params":7}`,
	} {
		if _, err := aggregate.CombineNames("docs", method, []byte(raw)); !errors.Is(err, aggregate.ErrNoServer) {
			t.Errorf("%s names its server: %v", raw, err)
		}
	}
}

func TestResolveTarget_FindsServerAndName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, method, raw, server, want string
		err                             error
	}{
		{"a tool", "tools/call", `{"params":{"name":"docs__a__b","arguments":{"name":"x__y"}}}`, "docs", `{"params":{"name":"a__b","arguments":{"name":"x__y"}}}`, nil},
		{"a resource", "resources/read", `{"params":{"uri":"mcp.docs+git+ssh://h/p"}}`, "docs", `{"params":{"uri":"git+ssh://h/p"}}`, nil},
		{"a template's completion", "completion/complete", `{"params":{"ref":{"type":"ref/resource","uri":"mcp.docs+f:///{p}"}}}`, "docs", `{"params":{"ref":{"type":"ref/resource","uri":"f:///{p}"}}}`, nil},
		{"a prompt's completion", "completion/complete", `{"params":{"ref":{"type":"ref/prompt","name":"docs__p"}}}`, "docs", `{"params":{"ref":{"type":"ref/prompt","name":"p"}}}`, nil},
		{"two servers", "completion/complete", `{"params":{"ref":{"name":"docs__p","uri":"mcp.files+p"}}}`, "", "", aggregate.ErrManyServers},
		{"no server", "tools/call", `{"params":{"name":"search"}}`, "", "", aggregate.ErrNoServer},
		{"an empty server", "tools/call", `{"params":{"name":"__search"}}`, "", "", aggregate.ErrNoServer},
		{"no rest", "tools/call", `{"params":{"name":"docs__"}}`, "", "", aggregate.ErrNoServer},
		{"a server's own URI", "resources/read", `{"params":{"uri":"git+ssh://h/p"}}`, "", "", aggregate.ErrNoServer},
		{"no name", "prompts/get", `{"params":{}}`, "", "", aggregate.ErrNoServer},
		{"a method that names nothing", "vendor/x", `{"params":{"name":"docs__p"}}`, "", "", aggregate.ErrNoServer},
	} {
		server, edits, err := aggregate.ResolveTarget(tt.method, []byte(tt.raw))
		if !errors.Is(err, tt.err) || server != tt.server {
			t.Errorf("%s: for %q, %v", tt.name, server, err)
			continue
		}
		if got, _ := jsonrpc.ApplyEdits([]byte(tt.raw), edits...); err == nil && string(got) != tt.want {
			t.Errorf("%s: %s", tt.name, got)
		}
	}
}

func TestCombinedID_IsSplitIntoItsParts(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{`7`, `"7"`, `"a:b\n\u00e9\ud83d\ude00"`, `-1.5e3`, `""`} {
		server, back, ok := aggregate.SplitID(aggregate.CombinedID("docs", []byte(raw)))
		if server != "docs" || string(back) != raw || !ok {
			t.Errorf("%s came back as %s of %q, %v", raw, back, server, ok)
		}
	}
	for _, raw := range []string{`7`, `"7"`, `"docs:"`, `":7"`, `"docs:7 8"`, `"docs:x"`} {
		if server, id, ok := aggregate.SplitID([]byte(raw)); ok {
			t.Errorf("%s is %s of %q", raw, id, server)
		}
	}
}

// FuzzCombinedNames checks that each combined name can be split into its original parts.
func FuzzCombinedNames(f *testing.F) {
	f.Add("search", "file:///a")
	f.Add("a__b", "mcp.x+y:z")
	f.Add("_", "+")
	f.Add("ſ.ı", "{scheme}://x")
	f.Fuzz(func(t *testing.T, name, uri string) {
		if !utf8.ValidString(name) || !utf8.ValidString(uri) || name == "" || uri == "" {
			t.Skip()
		}
		tool := aggregate.CombinedTool("docs", name)
		server, rest, ok := aggregate.SplitName(tool)
		if !ok || server != "docs" || len(tool) > 48 {
			t.Errorf("%q is %q", name, tool)
		}
		aliases := aggregate.NewToolAliases("docs", []string{name})
		if text, can := aliases.DisplayName("docs", name); can && text != tool {
			t.Errorf("%q is shown as %q", name, text)
		} else if own, ok := aliases.Resolve(server, rest); can && (own != name || !ok) {
			t.Errorf("%q came back as %q", name, own)
		}
		if server, rest, ok := aggregate.SplitURI(aggregate.CombinedURI("docs", uri)); server != "docs" || rest != uri || !ok {
			t.Errorf("%q came back as %q", uri, rest)
		}
	})
}
