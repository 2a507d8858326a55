package document

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// MaxTests limits the number of tests in a document.
const MaxTests = 1000

// testCodes contains the codes that a test can require.
var testCodes = []string{
	string(engine.DeniedByRule), string(engine.DeniedByDefault), string(engine.MethodDenied), string(engine.TypeError), string(engine.ScopeMissing),
	string(engine.ApprovalRequired), string(engine.ToolUnknown), string(engine.ToolNameInvalid),
}

// tests converts the tests in a document.
func (r *reader) tests(f *form, d *engine.Document) []Test {
	r.checkFilled("tests", f.Tests == nil || len(f.Tests) > 0, "remove it")
	if len(f.Tests) > MaxTests {
		r.add("tests", fmt.Sprintf("has more than %d tests", MaxTests), "")
		return nil
	}
	out := make([]Test, 0, len(f.Tests))
	for i := range f.Tests {
		t := &f.Tests[i]
		at := strictyaml.Index("tests", i)
		out = append(out, Test{
			source: r.source, at: at, document: d.Name, name: t.Name, want: r.testWant(at+".want", &t.Want),
			call: r.testCall(at, t, d),
		})
	}
	return out
}

func (r *reader) testWant(at string, w *testWant) testWant {
	switch {
	case w.Action == "" && r.has(at): // the value is not a mapping, or the key is misspelled
	case w.Action == "":
		r.add(at+".action", "is required", "use "+strings.Join(engine.Actions(), ", "))
	case !slices.Contains(engine.Actions(), w.Action):
		r.add(at+".action", fmt.Sprintf("unknown action %q", w.Action), actionHint(w.Action))
	}
	if w.Code != "" && !slices.Contains(testCodes, w.Code) {
		r.add(at+".code", fmt.Sprintf("unknown code %q", w.Code), strictyaml.Suggest(w.Code, testCodes))
	}
	return *w
}

func (r *reader) testCall(at string, t *testForm, d *engine.Document) engine.Call {
	call := engine.Call{
		Server: t.Call.Server, Subject: r.testSubject(at+".caller", t.Caller), Facts: engine.Facts{Status: engine.Callable},
	}
	if t.Now != nil {
		call.Now = time.Time(*t.Now)
	}
	if call.Server == "" && !strings.ContainsAny(d.Server, `*?\`) {
		call.Server = d.Server
	}
	if call.Server == "" {
		r.add(at+".call.server", "is required, because the document is not about one server", "write the server's name, for example call: {server: files, tool: …}")
	}
	r.testMethod(at+".call", &t.Call, &call)
	if t.Call.Args != nil {
		call.Params = r.testParams(at+".call.args", t.Call.Args, &call)
	}
	call.CheckArguments = r.testSchema(at+".tool.schema", t.Tool)
	if t.Tool != nil {
		if !call.OfTool() {
			r.add(at+".tool", "concerns only tools/call", "remove it")
		}
		call.Facts = r.testFacts(at+".tool", t.Tool)
	}
	return call
}

// testMethod sets the method of the test's call, and the tool name, prompt name or URI in the call.
func (r *reader) testMethod(at string, t *testCall, call *engine.Call) {
	kinds := []struct {
		key, value, ref string
		methods         []string
	}{
		{"tool", t.Tool, "", []string{engine.MethodToolsCall}},
		{"prompt", t.Prompt, engine.RefPrompt, []string{"prompts/get", "completion/complete"}},
		{"uri", t.URI, engine.RefResource, []string{
			"resources/read", "resources/subscribe", "resources/unsubscribe", "completion/complete", "notifications/resources/updated",
		}},
	}
	named := ""
	for _, kind := range kinds {
		switch {
		case kind.value == "" && slices.Contains(kind.methods, t.Method) && t.Prompt == "" && t.URI == "":
			r.add(at+"."+kind.key, "is required for the method "+t.Method, "")
			return
		case kind.value == "":
		case named != "":
			r.add(at+"."+kind.key, "can't be used together with "+named, "write another test")
		default:
			named = kind.key
			call.Tool = kind.value
			if call.Method = cmp.Or(t.Method, kind.methods[0]); call.Method == "completion/complete" {
				call.Ref = kind.ref
			}
			if !slices.Contains(kind.methods, call.Method) {
				r.add(at+".method", "is not a method with the key "+kind.key, "use "+strings.Join(kind.methods, ", "))
			}
		}
	}
	if named != "" {
		return
	}
	call.Method = t.Method
	switch {
	case t.Method == "":
		r.add(at, "names no tool", "add tool, prompt, uri or method")
	case slices.Contains(mcpmethod.WithoutRule(), t.Method):
		r.add(at+".method", "names a method that always passes or is always refused, whatever the rules are", "remove the test")
	}
}

func orElse(value *string, absent string) string {
	if value == nil {
		return absent
	}
	return *value
}

// testSubject converts the caller in a test. Absent keys have the same defaults as in `sluice policy explain`.
func (r *reader) testSubject(at string, c *testCaller) engine.Subject {
	if c == nil {
		c = new(testCaller)
	}
	out := engine.Subject{Caller: engine.Principal{
		Name: orElse(c.Subject, "local-agent"), Agent: orElse(c.Agent, "local"),
		Tenant: orElse(c.Tenant, "default"), Groups: c.Groups, Issuer: c.Issuer, Client: c.Client, Scopes: c.Scopes,
	}}
	r.checkFilled(at+".subject", out.Caller.Name != "", "remove it, or write the caller's subject")
	r.checkFilled(at+".tenant", out.Caller.Tenant != "", "remove it, or write the caller's tenant")
	if len(c.Chain) > engine.MaxChain {
		r.add(at+".chain", fmt.Sprintf("has more than %d principals", engine.MaxChain), "")
	}
	for i := range c.Chain {
		p := &c.Chain[i]
		at := strictyaml.Index(at+".chain", i)
		principal := engine.Principal{
			Name: orElse(p.Subject, ""), Agent: orElse(p.Agent, ""), Tenant: orElse(p.Tenant, out.Caller.Tenant), Groups: p.Groups,
			Issuer: p.Issuer, Client: p.Client, Scopes: p.Scopes,
		}
		if principal.Name == "" {
			r.add(at+".subject", "is required", "write the subject of the principal")
		}
		r.checkFilled(at+".tenant", principal.Tenant != "", "remove it, or write the principal's tenant")
		out.Chain = append(out.Chain, principal)
	}
	return out
}

// testFacts converts the facts about the tool in a test. The test uses them instead of facts from the catalog.
func (r *reader) testFacts(at string, t *testTool) engine.Facts {
	one := func(key, value string, known []string) {
		if value != "" && !slices.Contains(known, value) {
			r.add(at+"."+key, fmt.Sprintf("%q is unknown", value), "use "+strings.Join(known, ", "))
		}
	}
	one("category", t.Category, engine.Categories())
	one("risk", t.Risk, engine.Risks())
	switch {
	case t.Category != "" && t.Risk == "":
		r.add(at+".risk", "is required, because a tool with a category has a risk", "use "+strings.Join(engine.Risks(), ", "))
	case t.Category == "" && (t.Risk != "" || len(t.Tags) > 0):
		r.add(at+".category", "is required, because a tool with a risk or tags has a category", "use "+strings.Join(engine.Categories(), ", "))
	}
	facts := engine.Facts{
		Status: engine.Callable, Category: t.Category, Risk: t.Risk, Tags: t.Tags, Believed: t.Trusted, Sure: t.Category != "",
		Arguments: slices.Sorted(slices.Values(t.Arguments)),
	}
	if t.Trusted {
		facts.Hints = engine.Annotations()
		maps.Copy(facts.Hints, t.Annotations)
	} else if t.Annotations != nil {
		r.add(at+".annotations", "are ignored, because the server is not trusted", "add trusted: true, or remove them")
	}
	for name := range t.Annotations {
		if _, known := engine.Annotations()[name]; !known {
			r.add(strictyaml.Key(at+".annotations", name), "is not an annotation of a tool", "use "+strings.Join(slices.Sorted(maps.Keys(engine.Annotations())), ", "))
		}
	}
	return facts
}

// testParams returns the JSON params of the test's call with the given arguments.
func (r *reader) testParams(at string, args *yaml.Node, call *engine.Call) string {
	switch {
	case !call.OfTool() && call.Method != "prompts/get":
		r.add(at, "concern only tools/call and prompts/get", "remove them")
		return ""
	case args.Kind != yaml.MappingNode:
		r.add(at, "wanted a mapping", "write the arguments by name, for example args: {amount: 5}")
		return ""
	}
	var out bytes.Buffer
	enc := jsontext.NewEncoder(&out)
	for _, token := range []jsontext.Token{jsontext.BeginObject, jsontext.String("arguments")} {
		_ = enc.WriteToken(token) // writing to a buffer never fails
	}
	r.writeJSON(enc, at, args)
	_ = enc.WriteToken(jsontext.EndObject)
	return out.String()
}

// writeJSON writes a YAML value as JSON. Numbers keep all their digits. If a scalar can't be written as JSON, writeJSON
// adds a problem.
func (r *reader) writeJSON(enc *jsontext.Encoder, at string, n *yaml.Node) {
	var err error
	switch n.Kind { //nolint:exhaustive // aliases were reported when the document was decoded
	case yaml.MappingNode:
		_ = enc.WriteToken(jsontext.BeginObject)
		for i := 0; i+1 < len(n.Content) && err == nil; i += 2 {
			if err = enc.WriteToken(jsontext.String(n.Content[i].Value)); err == nil {
				r.writeJSON(enc, strictyaml.Key(at, n.Content[i].Value), n.Content[i+1])
			}
		}
		_ = enc.WriteToken(jsontext.EndObject)
	case yaml.SequenceNode:
		_ = enc.WriteToken(jsontext.BeginArray)
		for i, item := range n.Content {
			r.writeJSON(enc, strictyaml.Index(at, i), item)
		}
		_ = enc.WriteToken(jsontext.EndArray)
	case yaml.ScalarNode:
		r.writeScalar(enc, at, n)
	default:
		_ = enc.WriteToken(jsontext.Null)
	}
}

func (r *reader) writeScalar(enc *jsontext.Encoder, at string, n *yaml.Node) {
	switch n.ShortTag() {
	case "!!null":
		_ = enc.WriteToken(jsontext.Null)
	case "!!bool":
		_ = enc.WriteToken(jsontext.Bool(strings.EqualFold(n.Value, "true")))
	case "!!str":
		_ = enc.WriteToken(jsontext.String(n.Value))
	case "!!int", "!!float":
		if jsontext.Value(n.Value).IsValid() {
			_ = enc.WriteValue(jsontext.Value(n.Value))
			return
		}
		r.add(at, fmt.Sprintf("%q is not a number in JSON", n.Value), "write it as 16, 0.5 or 1e3, or put it in quotes if it is text")
		_ = enc.WriteToken(jsontext.Null)
	default:
		r.add(at, "is a date, which JSON does not have", "put it in quotes")
		_ = enc.WriteToken(jsontext.Null)
	}
}
