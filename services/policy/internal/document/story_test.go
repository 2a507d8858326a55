package document_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/sluice-mesh/sluice/services/internal/observe"
	"github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/inputschema"
)

// testNow is the time at which the tests load the documents in the test archives.
var testNow = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

var update = flag.Bool("update", false, "rewrite the golden files")

// storyCall is the content of a call.json file. It contains a call and its caller in the form of an ExplainCallRequest.
type storyCall struct {
	Call struct {
		Method string `json:"method"`
		Server string `json:"server"`
		Name   string `json:"name"`
		Ref    string `json:"ref"`
		Params string `json:"paramsJson"`
	} `json:"call"`
	Subject storyPrincipal `json:"subject"`
	// Tool contains facts about the tool. If it is absent, the tool is callable and has no classification.
	Tool *storyFacts `json:"tool"`
}

type storyFacts struct {
	Standing string          `json:"standing"`
	Category string          `json:"category"`
	Risk     string          `json:"risk"`
	Tags     []string        `json:"tags"`
	Hints    map[string]bool `json:"annotations"`
	Believed bool            `json:"believed"`
	Unsure   bool            `json:"unsure"`
	// Definition is the definition of the tool, for rules with forward: strict.
	Definition jsontext.Value `json:"definition"`
}

// statuses maps the names of statuses in the test files to the statuses. An empty name means that the tool is callable.
var statuses = map[string]engine.Status{
	"": engine.Callable, "callable": engine.Callable, "unlisted": engine.Unlisted, "changed": engine.Changed, "quarantined": engine.Quarantined,
}

type storyPrincipal struct {
	Tenant  string           `json:"tenant"`
	Subject string           `json:"subject"`
	Agent   string           `json:"agent"`
	Groups  []string         `json:"groups"`
	Session string           `json:"session"`
	Run     string           `json:"run"`
	Chain   []storyPrincipal `json:"chain"`
}

// storyDecision is the content of a want.json file: the decision, whether the tool is visible, and the explanation.
type storyDecision struct {
	Effect     string         `json:"effect"`
	Code       string         `json:"code,omitzero"`
	Message    string         `json:"message,omitzero"`
	Rule       string         `json:"rule,omitzero"`
	Limits     []string       `json:"limits,omitempty"`
	Approval   *storyApproval `json:"approval,omitzero"`
	Idempotent bool           `json:"idempotent,omitzero"`
	Timeout    string         `json:"timeout,omitzero"`
	Hidden     bool           `json:"hidden,omitzero"`
	ChainIndex int            `json:"chainIndex,omitzero"`
	Listed     bool           `json:"listed"`
	Why        string         `json:"why"`
	Observed   *storyObserved `json:"observed,omitzero"`
}

// storyObserved is the decision that would be made if everything were enforced and nothing only recorded (mode:
// observe).
type storyObserved struct {
	Effect  string   `json:"effect"`
	Code    string   `json:"code,omitzero"`
	Message string   `json:"message,omitzero"`
	Rule    string   `json:"rule,omitzero"`
	Limits  []string `json:"limits,omitempty"`
	// Cacheable is true if this decision and the decision that contains it may both be reused for other calls.
	Cacheable bool `json:"cacheable"`
}

type storyApproval struct {
	Approvers     []string `json:"approvers,omitempty"`
	Quorum        int      `json:"quorum"`
	DecideWithin  string   `json:"decideWithin,omitzero"`
	ExecuteWithin string   `json:"executeWithin,omitzero"`
	SelfConfirm   bool     `json:"selfConfirm,omitzero"`
	MaxAge        string   `json:"maxAge,omitzero"`
	ACR           []string `json:"acr,omitempty"`
	Grant         string   `json:"grant,omitzero"`
}

// TestDecide_Stories runs each archive in testdata/decide. Each .yaml file is a policy document, and NAME.want.json
// contains the expected decision on the call in NAME.call.json. A file observe.json maps the names of servers to the
// times until which their policy is not enforced, only recorded. The name * means every server. The flag -update
// rewrites the expected decisions.
func TestDecide_Stories(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../testdata/decide/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("stories: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			runStory(t, file)
		})
	}
}

func runStory(t *testing.T, file string) {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	set := compileStory(t, archive)
	content := make(map[string]*txtar.File)
	for i := range archive.Files {
		content[archive.Files[i].Name] = &archive.Files[i]
	}
	told := false
	for _, f := range archive.Files {
		name, isCall := strings.CutSuffix(f.Name, "call.json")
		if !isCall {
			continue
		}
		told = true
		got := decide(set, parseCall(t, f.Data))
		want := content[name+"want.json"]
		if want == nil {
			t.Fatalf("%s has no %swant.json", f.Name, name)
		}
		if *update {
			want.Data = format(t, got)
			continue
		}
		var wanted storyDecision
		decodeJSON(t, want.Data, &wanted)
		if diff := cmp.Diff(wanted, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", f.Name, diff)
		}
	}
	if !told {
		t.Error("the story has no call.json")
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func compileStory(t *testing.T, archive *txtar.Archive) *engine.Set {
	t.Helper()
	var policies []document.File
	var observed engine.Observe
	for _, f := range archive.Files {
		if f.Name == "observe.json" {
			observed = parseObserve(t, f.Data)
		}
		if filepath.Ext(f.Name) == ".yaml" {
			policies = append(policies, document.File{Path: f.Name, Text: f.Data})
		}
	}
	parsed, err := document.ParseSet(policies, nil, testNow)
	if err != nil {
		t.Fatal(err)
	}
	return compile(t, parsed, observed)
}

// testCap and testTimes are the options that the tests use when they compile sets of documents.
const testCap = 10

var testTimes = engine.Times{Decide: 15 * time.Minute, Execute: 5 * time.Minute}

func compile(t testing.TB, parsed *document.Set, observed engine.Observe) *engine.Set {
	t.Helper()
	set, err := engine.Compile(parsed.Documents, engine.Options{SessionCap: testCap, Times: testTimes, Observe: observed, Now: testNow})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func parseCall(t *testing.T, text []byte) engine.Call {
	t.Helper()
	var c storyCall
	decodeJSON(t, text, &c)
	call := engine.Call{
		Method: c.Call.Method, Server: c.Call.Server, Tool: c.Call.Name, Ref: c.Call.Ref, Params: c.Call.Params,
		Subject: engine.Subject{Caller: c.Subject.principal()}, Facts: engine.Facts{Status: engine.Callable},
	}
	if f := c.Tool; f != nil {
		standing, known := statuses[f.Standing]
		if !known {
			t.Fatalf("no tool is %q", f.Standing)
		}
		call.Facts = engine.Facts{Status: standing, Category: f.Category, Risk: f.Risk, Tags: f.Tags, Hints: f.Hints, Believed: f.Believed, Sure: !f.Unsure}
		if f.Definition != nil {
			schema, err := inputschema.Compile(string(f.Definition))
			call.CheckArguments = func(params string) error {
				if err != nil {
					return err
				}
				return schema.Check(params)
			}
		}
	}
	for _, p := range c.Subject.Chain {
		call.Subject.Chain = append(call.Subject.Chain, p.principal())
	}
	return call
}

func (p *storyPrincipal) principal() engine.Principal {
	tenant := p.Tenant
	if tenant == "" {
		tenant = "default"
	}
	return engine.Principal{
		Tenant: tenant, Name: p.Subject, Agent: p.Agent, Groups: p.Groups, Session: p.Session, Run: p.Run,
	}
}

func decide(set *engine.Set, call engine.Call) storyDecision {
	e := set.Explain(call)
	d := e.Decision
	a := storyDecision{
		Effect: effectName(d.Effect), Code: codeName(d.Code), Message: d.Message, Hidden: d.Hidden, Idempotent: d.Idempotent,
		ChainIndex: d.ChainIndex, Why: e.Why, Listed: set.Visible(call.Subject, call.Server, call.Tool, call.Facts).Visible,
	}
	if o := d.Observed; o != nil {
		a.Observed = &storyObserved{
			Effect: effectName(o.Effect), Message: o.Message, Code: codeName(o.Code), Cacheable: set.Cacheability(call, d).Cacheable,
		}
		if !o.Rule.IsZero() {
			a.Observed.Rule = o.Rule.String()
		}
		for _, l := range o.Limits {
			a.Observed.Limits = append(a.Observed.Limits, describe(l))
		}
	}
	if !d.Rule.IsZero() {
		a.Rule = d.Rule.String()
	}
	if d.Approval != nil {
		a.Approval = describeTerms(d.Approval)
	}
	if d.Timeout > 0 {
		a.Timeout = fmt.Sprintf("%s by %s", d.Timeout, d.TimeoutRule)
	}
	for _, l := range d.Limits {
		a.Limits = append(a.Limits, describe(l))
	}
	return a
}

func effectName(e engine.Effect) string { return "EFFECT_" + strings.ToUpper(e.String()) }

func codeName(c engine.Code) string {
	if c == "" {
		return ""
	}
	return "CODE_" + strings.ToUpper(string(c))
}

// parseObserve parses the content of an observe.json file.
func parseObserve(t *testing.T, text []byte) engine.Observe {
	t.Helper()
	var until map[string]observe.Until
	decodeJSON(t, text, &until)
	out := engine.Observe{All: until["*"].Time(), Servers: make(map[string]time.Time)}
	for name, u := range until {
		if name != "*" {
			out.Servers[name] = u.Time()
		}
	}
	return out
}

func describeTerms(t *engine.ApprovalTerms) *storyApproval {
	out := &storyApproval{Approvers: t.Approvers, Quorum: t.Quorum, SelfConfirm: t.SelfConfirm, ACR: t.ApproveWith.ACR}
	if t.ApproveWith.MaxAge > 0 {
		out.MaxAge = t.ApproveWith.MaxAge.String()
	}
	if t.DecideWithin > 0 {
		out.DecideWithin = t.DecideWithin.String()
	}
	if t.ExecuteWithin > 0 {
		out.ExecuteWithin = t.ExecuteWithin.String()
	}
	if t.Grant != (engine.Grant{}) {
		out.Grant = strings.Join(append([]string{fmt.Sprintf("%d in %s", t.Grant.Calls, t.Grant.Within)}, t.Where...), " where ")
	}
	return out
}

// describe returns a limit as one line of text.
func describe(l engine.Limit) string {
	var per []string
	for _, d := range l.Per {
		name := d.String()
		if d == engine.PerSession {
			name += "=" + l.SessionKey.String()
		}
		per = append(per, name)
	}
	text := fmt.Sprintf("%s: %d in %s per %s", l.Rule, l.Max, l.Window, strings.Join(per, ", "))
	if l.Cap {
		return text + ", the cap"
	}
	return text
}

func decodeJSON(t *testing.T, text []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(text, into, json.RejectUnknownMembers(true)); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func format(t *testing.T, a storyDecision) []byte {
	t.Helper()
	text, err := json.Marshal(a, jsontext.WithIndent("  "), jsontext.EscapeForHTML(false))
	if err != nil {
		t.Fatal(err)
	}
	return append(bytes.TrimSpace(text), '\n')
}
