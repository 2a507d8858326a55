package policy_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/norace"
	"github.com/sluice-mesh/sluice/services/policy"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	policydocument "github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/inputschema"
)

var dayOfCalls = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// observedTool returns a tool whose classification is certain. The tool has one call for each of the given arguments.
func observedTool(name, definition string, category mcpv1.Category, risk policyv1.Risk, arguments ...string) policy.ObservedTool {
	out := policy.ObservedTool{
		ClassifiedTool: policy.ClassifiedTool{Name: name, Classification: &policyv1.Classification{Category: category, Risk: risk, Confidence: 1}},
		Definition:     definition, Digest: []byte("digest"), Use: policy.Use{Calls: len(arguments), Callers: 1, Busiest: min(len(arguments), 7)},
	}
	for i, one := range arguments {
		out.Calls = append(out.Calls, policy.ObservedCall{
			ID: fmt.Sprintf("call-%d", len(arguments)-i), Time: dayOfCalls.Add(-time.Duration(i) * time.Minute), Arguments: one, Definition: out.Digest,
		})
	}
	return out
}

const (
	readCategory, writeCategory = mcpv1.Category_CATEGORY_READ, mcpv1.Category_CATEGORY_WRITE
	lowRisk, mediumRisk         = policyv1.Risk_RISK_LOW, policyv1.Risk_RISK_MEDIUM
	pathSchema                  = `{"inputSchema":{"type":"object","properties":{"path":{"type":"string"},"text":{"type":"string"}},"required":["path"]}}`
)

func proposed(t *testing.T, tools ...policy.ObservedTool) string {
	t.Helper()
	made, err := policy.Propose("files", tools, "")
	if err != nil {
		t.Fatal(err)
	}
	documents := []*policyv1.Document{{Path: "files.yaml", Text: string(made.Document)}}
	lists := policy.ToolLists{Tools: map[string][]policy.ListedTool{"files": {}}}
	definitions := make(map[string]string)
	for _, tool := range tools {
		lists.Tools["files"] = append(lists.Tools["files"], policy.ListedTool{Name: tool.Name})
		definitions[tool.Name] = tool.Definition
	}
	lists.Schema = func(_, tool string) engine.Schema { return catalog.SchemaOf(definitions[tool]) }
	for _, f := range append(policy.Lint(documents), policy.LintLists(documents, lists)...) {
		if f.GetSeverity() == policyv1.Severity_SEVERITY_ERROR {
			t.Fatalf("lint: %s\n%s", f.GetMessage(), made.Document)
		}
	}
	return string(made.Document)
}

// The document has a rule for each tool that was called and that the server still lists. The document's comments
// describe the calls and the bounds, and say why an argument has no bound.
func TestPropose(t *testing.T) {
	t.Parallel()
	unlisted := observedTool("gone", "", readCategory, lowRisk, `{}`)
	unlisted.Unlisted = true
	got := proposed(t,
		observedTool("make_folder", pathSchema, writeCategory, mediumRisk, `{"path":"/srv/work/a"}`, `{"path":"/srv/work/b"}`),
		observedTool("append_text", pathSchema, writeCategory, mediumRisk, `{"path":"/srv/work/a","text":"one"}`),
		observedTool("search", pathSchema, readCategory, lowRisk, `{"path":"/srv/work","text":"it's"}`, `{"path":"/srv/work/b","text":"b"}`),
		observedTool("not_called", pathSchema, readCategory, lowRisk), unlisted)
	want, err := os.ReadFile(filepath.Join("testdata", "proposed.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("it proposes\n%s", got)
	}
}

// These tools need approval whatever was observed, even if there are bounds for every argument of their calls.
func TestPropose_NeverFreesDangerousTools(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*policy.ObservedTool){
		"destructive": func(o *policy.ObservedTool) {
			o.Category, o.Risk = mcpv1.Category_CATEGORY_DESTRUCTIVE, policyv1.Risk_RISK_CRITICAL
		},
		"destructive, low": func(o *policy.ObservedTool) { o.Category = mcpv1.Category_CATEGORY_DESTRUCTIVE },
		"financial":        func(o *policy.ObservedTool) { o.Category = mcpv1.Category_CATEGORY_FINANCIAL },
		"unknown":          func(o *policy.ObservedTool) { o.Category = mcpv1.Category_CATEGORY_UNSPECIFIED },
		"no class":         func(o *policy.ObservedTool) { o.Classification = nil },
		"uncertain":        func(o *policy.ObservedTool) { o.Confidence = 0.4 },
		"critical":         func(o *policy.ObservedTool) { o.Risk = policyv1.Risk_RISK_CRITICAL },
		"no risk":          func(o *policy.ObservedTool) { o.Risk = policyv1.Risk_RISK_UNSPECIFIED },
		"not accepted":     func(o *policy.ObservedTool) { o.NotAccepted = "its definition is not accepted" },
	} {
		tool := observedTool("x", pathSchema, readCategory, lowRisk, slices.Repeat([]string{`{"path":"/srv/work/a"}`}, 9)...)
		if text := proposed(t, tool); !strings.Contains(text, "action: allow") {
			t.Fatalf("the tool is not allowed:\n%s", text)
		}
		change(&tool)
		if text := proposed(t, tool); strings.Contains(text, "action: allow") || !strings.Contains(text, "x: {action: require_approval, reason: ") {
			t.Errorf("%s: it proposes\n%s", name, text)
		}
	}
}

// If an argument has no bound, a tool is allowed only if its category is Read and its risk is low.
func TestPropose_WithoutBoundsOnlyReadingIsAllowed(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*policy.ObservedCall){
		"not recorded": func(c *policy.ObservedCall) { c.Arguments, c.NotRecorded = "", true },
		"replaced":     func(c *policy.ObservedCall) { c.Arguments, c.Redacted = `{"path":"[redacted: secrets]"}`, true },
		"varies":       func(c *policy.ObservedCall) { c.Arguments = `{"path":"/etc/x"}` },
	} {
		for class, want := range map[*policyv1.Classification]string{
			{Category: readCategory, Risk: lowRisk, Confidence: 1}:                           "action: allow",
			{Category: readCategory, Risk: mediumRisk, Confidence: 1}:                        "action: require_approval",
			{Category: writeCategory, Risk: lowRisk, Confidence: 1}:                          "action: require_approval",
			{Category: mcpv1.Category_CATEGORY_EXECUTE, Risk: lowRisk, Confidence: 1}:        "action: require_approval",
			{Category: mcpv1.Category_CATEGORY_DESTRUCTIVE, Risk: lowRisk, Confidence: 1}:    "action: require_approval",
			{Category: mcpv1.Category_CATEGORY_UNSPECIFIED, Risk: mediumRisk, Confidence: 0}: "action: require_approval",
		} {
			tool := observedTool("x", pathSchema, 0, 0, `{"path":"/srv/work/a"}`, `{"path":"/srv/work/a"}`)
			tool.Classification = class
			change(&tool.Calls[1])
			text := proposed(t, tool)
			if !strings.Contains(text, want) || class.GetCategory() == readCategory && !strings.Contains(text, "no bound") {
				t.Errorf("%s, %v: it proposes\n%s", name, class, text)
			}
		}
	}
}

// Strings from servers and arguments can't add rules to the document, and can't hide text in comments.
func TestPropose_QuotesHostileTexts(t *testing.T) {
	t.Parallel()
	const hostile = "a'\n  evil: {action: allow}\n#\u2028\u202e\u001b[2J" + `\"]) || true || ("`
	raw, err := json.Marshal(map[string]string{"path": "/srv/" + hostile, hostile: hostile, "text": hostile})
	if err != nil {
		t.Fatal(err)
	}
	tools := []policy.ObservedTool{
		observedTool("read", "{}", readCategory, lowRisk, slices.Repeat([]string{string(raw)}, 5)...),
		observedTool(hostile, "{}", readCategory, lowRisk, `{}`),
	}
	text := proposed(t, tools...)
	if strings.Contains(text, "\n  evil") || strings.ContainsAny(text, "\x1b\u202e\u2028") {
		t.Errorf("it proposes\n%s", text)
	}
	if err := proposedDecider(t, text, &tools[0])(`{"path":"/etc/passwd"}`); err == nil {
		t.Errorf("other arguments are allowed by\n%s", text)
	}
	for _, server := range []string{"", "s*", "a b", "a\nb: c"} {
		if made, err := policy.Propose(server, nil, ""); err == nil {
			t.Errorf("a document for %q:\n%s", server, made.Document)
		}
	}
}

// proposedDecider compiles a document. It returns a function that returns an error unless the document allows a call to
// the tool with the given arguments.
func proposedDecider(t *testing.T, text string, tool *policy.ObservedTool) func(arguments string) error {
	t.Helper()
	parsed, err := policydocument.ParseSet([]policydocument.File{{Path: "p.yaml", Text: []byte(text)}}, nil, time.Now())
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	set, err := engine.Compile(parsed.Documents, engine.Options{SessionCap: 1, Times: engine.Times{Decide: time.Hour, Execute: time.Hour}})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	schema, schemaErr := inputschema.Compile(tool.Definition)
	return func(arguments string) error {
		call := engine.Call{Server: "files", Tool: tool.Name, Facts: engine.Facts{Status: engine.Callable}}
		call.Subject.Caller = engine.Principal{Tenant: "default", Name: "ana"}
		if arguments != "" {
			call.Params = `{"arguments":` + arguments + `}`
		}
		if schemaErr == nil {
			call.CheckArguments = schema.Check
		}
		if d := set.Decide(call); d.Effect != engine.Allow {
			return fmt.Errorf("%s is refused: %s %s", arguments, d.Code, d.Message)
		}
		return nil
	}
}

// Whatever was observed, the document can be loaded. It allows every observed call to a tool whose category is Read and
// whose risk is low.
func TestPropose_AllowsSeededCalls(t *testing.T) {
	t.Parallel()
	bounds := 0
	for seed := range uint64(norace.Some(100)) {
		r := rand.New(rand.NewPCG(seed, 13))
		tool := observedTool("read", randomDefinition(r), readCategory, lowRisk, randomCalls(r)...)
		text := proposed(t, tool)
		bounds += strings.Count(text, "path.within(") + strings.Count(text, "url.host(") + strings.Count(text, "decimal(") + strings.Count(text, " in [")
		decide := proposedDecider(t, text, &tool)
		for _, c := range tool.Calls {
			if err := decide(c.Arguments); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, text)
			}
		}
		if strings.Contains(text, "refuses an observed call") {
			t.Fatalf("seed %d: a bound was too narrow:\n%s", seed, text)
		}
	}
	if bounds < norace.Some(300) {
		t.Errorf("the documents have only %d bounds", bounds)
	}
}

// randomNames contains argument names. Some of them are not identifiers, and some differ only in spelling.
var randomNames = []string{"path", "url", "n", "kind", "dry-run", "in", "paths", "Path", "a b", "deep", "x\u202e\"'", "amount"}

func randomDefinition(r *rand.Rand) string {
	properties, required := make(map[string]any), []string{}
	for _, name := range randomNames {
		if r.IntN(8) > 0 {
			properties[name] = map[string]any{}
		}
		if r.IntN(20) == 0 {
			required = append(required, name)
		}
	}
	raw, _ := json.Marshal(map[string]any{"inputSchema": map[string]any{"type": "object", "properties": properties, "required": required}})
	return string(raw)
}

// randomCalls returns the arguments of random calls. In most calls, the values of an argument are of the same kind.
func randomCalls(r *rand.Rand) (out []string) {
	kinds := make(map[string]int)
	for _, name := range randomNames {
		kinds[name] = r.IntN(10)
	}
	used := randomNames[:1+r.IntN(len(randomNames))]
	for range 1 + r.IntN(30) {
		var members []string
		for _, name := range used {
			kind := kinds[name]
			if r.IntN(60) == 0 {
				kind = r.IntN(10)
			}
			if r.IntN(12) > 0 {
				quoted, _ := json.Marshal(name)
				members = append(members, string(quoted)+":"+randomValue(r, kind))
			}
		}
		out = append(out, "{"+strings.Join(members, ",")+"}")
	}
	return out
}

func randomValue(r *rand.Rand, kind int) string {
	one := func(list ...string) string { return list[r.IntN(len(list))] }
	text := func(s string) string {
		raw, _ := json.Marshal(s)
		return string(raw)
	}
	switch kind {
	case 0:
		return text("/srv/work/" + one("a", "b/c", "d e", "ü", "../x", "", "x'y") + one("", "", "/", ".txt", "/f"))
	case 1:
		return text(one("https", "HTTPS") + "://" + one("api.example.com", "API.example.com") + one("", ":443") + one("", "/v1", "/v1?q=1#f"))
	case 2:
		return one("0", "-0", "1", "-3", "100", "1e2", "12.50", "0.1", "1E-7", "18446744073709551615", "123456789012345678901234567890")
	case 3:
		return text(one("low", "high"))
	case 4:
		return one("true", "false")
	case 5:
		return "[" + strings.TrimSuffix(strings.Repeat(text("/srv/"+one("a", "b", "c"))+",", r.IntN(4)), ",") + "]"
	case 6:
		return text(one("a\nb", "\u202e", `"\`, "'", "${x}", "日本", "\u0000", "~", "..", "/", "", "C:\\x", "//h/x", "a%2fb") + fmt.Sprint(r.IntN(20)))
	case 7:
		return one("null", `{"a":{"b":[1,"x"]}}`, `[]`, `[1]`, `[{}]`)
	case 8:
		return text(one("docs/a.md", "docs/b.md", "./docs", "docs/x/../y"))
	default:
		return "true"
	}
}
