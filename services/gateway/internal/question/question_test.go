package question_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/question"
)

const (
	denied  = commonv1.Code_CODE_METHOD_DENIED
	invalid = commonv1.Code_CODE_METHOD_INVALID
	variant = commonv1.Code_CODE_FIELD_CASE_VARIANT
	allowed = commonv1.Code_CODE_UNSPECIFIED
)

// ability returns a client capability with the given options.
func ability(method string, options ...string) mcp.Ability {
	out := mcp.Ability{Method: method}
	for _, name := range options {
		out.Options = append(out.Options, mcp.Option{Name: name, Value: "{}"})
	}
	return out
}

func sampling(options ...string) mcp.Ability    { return ability(mcp.MethodSample, options...) }
func elicitation(options ...string) mcp.Ability { return ability(mcp.MethodElicit, options...) }

// offer returns an Offer with the given revision and capabilities.
func offer(revision string, abilities ...mcp.Ability) question.Offer {
	return question.Offer{Abilities: abilities, Revision: revision}
}

// check returns the error for a request with the given params, or nil if the request is allowed.
func check(t *testing.T, o question.Offer, method, params string) *question.Error {
	t.Helper()
	text := `{"jsonrpc":"2.0","id":1,"method":"` + method + `"}`
	if params != "" {
		text = `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`
	}
	m, err := jsonrpc.Parse([]byte(text), jsonrpc.DefaultLimits())
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return o.Check(m)
}

// checkCode reports an error unless the request is refused with the code want. If want is 0, checkCode reports an error
// unless the request is allowed.
func checkCode(t *testing.T, name string, o question.Offer, method, params string, want commonv1.Code) {
	t.Helper()
	err := check(t, o, method, params)
	switch {
	case err == nil && want != allowed, err != nil && err.Code != want:
		t.Errorf("%s: %s %s is answered %v, want %v", name, method, params, err, want)
	case err != nil && (err.Method || err.Error() == "" || strings.HasSuffix(err.Error(), ".")):
		t.Errorf("%s: the error is %+v", name, err)
	}
}

func TestCheck_RefusesMethodsThatAreNotOffered(t *testing.T) {
	t.Parallel()
	all := offer("2025-11-25", sampling(), elicitation(), ability(mcp.MethodRoots))
	for _, tt := range []struct {
		offer  question.Offer
		method string
		want   bool
	}{
		{all, mcp.MethodRoots, true},
		{all, mcp.MethodSample, true},
		{all, mcp.MethodElicit, true},
		{all, mcp.MethodPing, false},
		{question.Offer{}, mcp.MethodRoots, false},
		{offer("2025-11-25", sampling()), mcp.MethodRoots, false},
		{offer("2025-11-25", sampling()), mcp.MethodElicit, false},
		{offer("2025-03-26", elicitation()), mcp.MethodElicit, false},
		{offer("2025-06-18", elicitation()), mcp.MethodElicit, true},
		{offer(mcp.Modern, elicitation()), mcp.MethodElicit, true},
		{offer("", elicitation()), mcp.MethodElicit, false},
		{offer("2024-11-05", ability(mcp.MethodRoots)), mcp.MethodRoots, true},
		{question.Offer{}, "vendor/ask", true}, // methods of extensions are not checked
		{question.Offer{}, "tools/call", true}, // requests that only clients send are refused elsewhere
	} {
		params := ""
		if tt.method == "tools/call" {
			params = `{"name":"x"}`
		}
		err := check(t, tt.offer, tt.method, params)
		if tt.want != (err == nil) || err != nil && (err.Code != denied || !err.Method) {
			t.Errorf("%s to %+v: %+v", tt.method, tt.offer, err)
		}
	}
}

func TestMethods_NeedARevisionThatHasThem(t *testing.T) {
	t.Parallel()
	for revision, want := range map[string][]string{
		"2025-11-25": {mcp.MethodSample, mcp.MethodElicit}, "2025-06-18": {mcp.MethodSample, mcp.MethodElicit}, mcp.Modern: {mcp.MethodSample, mcp.MethodElicit},
		"2025-03-26": {mcp.MethodSample}, "2027-01-01": {mcp.MethodSample},
	} {
		o := offer(revision, sampling(), elicitation())
		if diff := cmp.Diff(want, o.Methods()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", revision, diff)
		}
		if o.Has(mcp.MethodElicit) != (len(want) == 2) || o.Has(mcp.MethodRoots) {
			t.Errorf("%s has elicitation: %t, roots: %t", revision, o.Has(mcp.MethodElicit), o.Has(mcp.MethodRoots))
		}
	}
}

// Case U1. In revisions in which clients can declare options, a request may use only the options that the client has
// declared.
func TestCheck_SamplingNeedsDeclaredOptions(t *testing.T) {
	t.Parallel()
	const message = `[{"role":"user","content":%}]`
	content := func(c string) string { return `{"messages":` + strings.Replace(message, "%", c, 1) + `}` }
	for _, revision := range []string{"2025-11-25", mcp.Modern} {
		for name, tt := range map[string]struct {
			has    mcp.Ability
			params string
			want   commonv1.Code
		}{
			"nothing special":               {sampling(), `{"messages":[],"maxTokens":1,"x":1}`, allowed},
			"no context":                    {sampling(), `{"includeContext":"none"}`, allowed},
			"a null context":                {sampling(), `{"includeContext":null}`, allowed},
			"the context of one server":     {sampling(), `{"includeContext":"thisServer"}`, denied},
			"the context with other option": {sampling("tools"), `{"includeContext":"allServers"}`, denied},
			"the context as declared":       {sampling("context"), `{"includeContext":"allServers"}`, allowed},
			"a context in another case":     {sampling("context"), `{"includeContext":"AllServers"}`, invalid},
			"a context that is a list":      {sampling("context"), `{"includeContext":["allServers"]}`, invalid},
			"a key in another case":         {sampling("context"), `{"IncludeContext":"none"}`, variant},
			"a key with a folded letter":    {sampling(), `{"toolſ":[]}`, variant},
			"tools":                         {sampling("context"), `{"tools":[]}`, denied},
			"null tools":                    {sampling(), `{"tools":null}`, allowed},
			"a choice of tools":             {sampling(), `{"toolChoice":{}}`, denied},
			"tools as declared":             {sampling("tools"), `{"tools":[],"toolChoice":{}}`, allowed},
			"a task":                        {sampling("tools"), `{"task":{}}`, denied},
			"a null task":                   {sampling(), `{"task":null}`, allowed},
			"a text":                        {sampling(), content(`{"type":"text","text":"t"}`), allowed},
			"texts":                         {sampling(), content(`[{"type":"text"},{"type":"image"}]`), allowed},
			"a use of a tool":               {sampling(), content(`{"type":"tool_use"}`), denied},
			"a result of a tool":            {sampling(), content(`[{"type":"text"},{"type":"tool_result"}]`), denied},
			"a result as declared":          {sampling("tools"), content(`{"type":"tool_result"}`), allowed},
			"a type in another case":        {sampling(), content(`{"type":"Tool_Result"}`), denied},
			"a key of the type":             {sampling(), content(`{"TYPE":"tool_use"}`), denied},
			"a type with an escape":         {sampling(), content(`{"type":"tool\u005fuse"}`), denied},
			"a type that is no text":        {sampling(), content(`{"type":7}`), allowed},
			"content that is a text":        {sampling(), content(`"tool_use"`), allowed},
			"a list of a list":              {sampling(), content(`[["tool_use"]]`), denied},
			"messages that are an object":   {sampling(), `{"messages":{"content":{}}}`, denied},
			"messages that are a text":      {sampling(), `{"messages":"x"}`, allowed},
			"a message that is a list":      {sampling(), `{"messages":[[]]}`, allowed},
			"content under another key":     {sampling(), `{"messages":[{"Content":{"type":"tool_use"}}]}`, denied},
		} {
			checkCode(t, revision+": "+name, offer(revision, tt.has), mcp.MethodSample, tt.params, tt.want)
		}
	}
}

// Clients of older revisions could not declare options, so the option for context is implied. A server must not gain
// permissions by answering in a revision that is older than the one that the client has requested.
func TestCheck_ContextOfOlderRevisionsIsImplied(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		requested, revision string
		want                commonv1.Code
	}{
		{"", "2025-06-18", allowed}, {"", "2025-03-26", allowed}, {"", "2024-11-05", allowed}, {"", "2025-11-25", denied}, {"", mcp.Modern, denied},
		{"", "2027-01-01", denied}, {"", "", denied},
		{"2025-06-18", "2025-06-18", allowed}, {"2025-06-18", "2024-11-05", allowed},
		{"2025-11-25", "2025-06-18", denied}, {"2027-01-01", "2025-03-26", denied},
	} {
		o := question.Offer{Abilities: []mcp.Ability{sampling()}, Revision: tt.revision, RequestedRevision: tt.requested}
		checkCode(t, tt.requested+" to "+tt.revision, o, mcp.MethodSample, `{"includeContext":"thisServer"}`, tt.want)
	}
	for _, revision := range []string{"2025-06-18", "2024-11-05"} {
		checkCode(t, "tools", offer(revision, sampling("tools")), mcp.MethodSample, `{"tools":[]}`, denied)
		checkCode(t, "a use of a tool", offer(revision, sampling("tools")), mcp.MethodSample, `{"messages":[{"content":{"type":"tool_use"}}]}`, denied)
	}
}

// At the URL for all servers, a request with includeContext is not refused, because the gateway replaces the value with
// "none".
func TestCheck_ContextIsNotRefusedAtAllServers(t *testing.T) {
	t.Parallel()
	o := offer("2025-11-25", sampling())
	o.Aggregated = true
	checkCode(t, "a context", o, mcp.MethodSample, `{"includeContext":"allServers"}`, allowed)
	checkCode(t, "a value that MCP does not have", o, mcp.MethodSample, `{"includeContext":"all"}`, invalid)
}

func TestCheck_FormsAndURLsNeedTheirModes(t *testing.T) {
	t.Parallel()
	none, form, url, both := elicitation(), elicitation("form"), elicitation("url"), elicitation("form", "url")
	const address = `"url":"https://a.example/x"`
	for _, revision := range []string{"2025-11-25", mcp.Modern} {
		for name, tt := range map[string]struct {
			has    mcp.Ability
			params string
			want   commonv1.Code
		}{
			"a form where no mode is declared":    {none, `{"message":"m","requestedSchema":{}}`, allowed},
			"a form where forms are declared":     {form, `{"message":"m","mode":"form","requestedSchema":{"type":"object"}}`, allowed},
			"a form where only URLs are declared": {url, `{"message":"m","requestedSchema":{}}`, denied},
			"a form with a null mode":             {both, `{"message":"m","mode":null}`, allowed},
			"a form with a URL":                   {both, `{"message":"m",` + address + `}`, invalid},
			"a form with the id of a URL":         {both, `{"message":"m","elicitationId":"e"}`, invalid},
			"a form with a null URL":              {both, `{"message":"m","url":null}`, allowed},
			"a schema that is a text":             {form, `{"message":"m","requestedSchema":"x"}`, invalid},
			"a null schema":                       {form, `{"message":"m","requestedSchema":null}`, allowed},
			"a form without a message":            {form, `{}`, allowed},
			"another mode":                        {both, `{"message":"m","mode":"voice"}`, invalid},
			"a mode in another case":              {both, `{"message":"m","mode":"URL"}`, invalid},
			"a mode that is a list":               {both, `{"message":"m","mode":["url"]}`, invalid},
			"a mode under another key":            {both, `{"message":"m","Mode":"url"}`, variant},
			"a URL where URLs are declared":       {url, `{"message":"m","mode":"url","elicitationId":"e",` + address + `}`, allowed},
			"a URL where only forms are declared": {form, `{"message":"m","mode":"url",` + address + `}`, denied},
			"a URL where no mode is declared":     {none, `{"message":"m","mode":"url",` + address + `}`, denied},
			"a URL without its id":                {url, `{"message":"m","mode":"url",` + address + `}`, allowed},
			"a URL with a null id":                {url, `{"message":"m","mode":"url","elicitationId":null,` + address + `}`, allowed},
			"a URL with an empty id":              {url, `{"message":"m","mode":"url","elicitationId":"",` + address + `}`, invalid},
			"a URL with a long id":                {url, `{"message":"m","mode":"url","elicitationId":"` + strings.Repeat("e", 257) + `",` + address + `}`, invalid},
			"a URL with the longest id":           {url, `{"message":"m","mode":"url","elicitationId":"` + strings.Repeat("e", 256) + `",` + address + `}`, allowed},
			"a URL with an id that is a number":   {url, `{"message":"m","mode":"url","elicitationId":7,` + address + `}`, invalid},
			"a URL with a schema":                 {url, `{"message":"m","mode":"url","requestedSchema":{},` + address + `}`, invalid},
			"no URL":                              {url, `{"message":"m","mode":"url"}`, invalid},
			"a URL that is a list":                {url, `{"message":"m","mode":"url","url":["https://a.example"]}`, invalid},
			"a task":                              {both, `{"message":"m","task":{}}`, denied},
		} {
			checkCode(t, revision+": "+name, offer(revision, tt.has), mcp.MethodElicit, tt.params, tt.want)
		}
	}
	checkCode(t, "a URL before there were modes", offer("2025-06-18", both), mcp.MethodElicit, `{"message":"m","mode":"url",`+address+`}`, denied)
	checkCode(t, "a form before there were modes", offer("2025-06-18", both), mcp.MethodElicit, `{"message":"m"}`, allowed)
}

// A URL is refused if a person could not see where it leads, or if parsers could disagree about the URL's host.
func TestCheck_URLsAreUnambiguous(t *testing.T) {
	t.Parallel()
	o := offer("2025-11-25", elicitation("url"))
	for url, want := range map[string]commonv1.Code{
		"https://a.example":            allowed,
		"https://a.example:8443/x?y#z": allowed,
		"HTTPS://a.example":            allowed,
		"https://[2001:db8::1]/":       allowed,
		"http://127.0.0.1:8080/":       allowed,
		"http://127.1.2.3/":            allowed,
		"http://[::1]/":                allowed,
		"http://LocalHost/":            allowed,
		"https://a.example/" + strings.Repeat("x", 8<<10-18): allowed,
		"https://a.example/" + strings.Repeat("x", 8<<10-17): invalid,
		"http://a.example":             invalid,
		"http://localhost.a.example":   invalid,
		"http://128.0.0.1/":            invalid,
		"http://127.0.0.1.a.example":   invalid,
		"ftp://a.example":              invalid,
		"javascript:alert(1)":          invalid,
		"file:///etc/passwd":           invalid,
		"https:a.example":              invalid,
		"https:///x":                   invalid,
		"https://:443/":                invalid,
		"//a.example":                  invalid,
		"a.example":                    invalid,
		"https://a.example@b.example/": invalid,
		"https://u:p@a.example/":       invalid,
		"https://a.example/x\\\\y":     invalid,
		"https://a.example /":          invalid,
		"https://аpple.example/":       invalid,
		"https://a.example/%zz":        invalid,
		"":                             invalid,
	} {
		checkCode(t, "a URL", o, mcp.MethodElicit, `{"message":"m","mode":"url","url":"`+url+`"}`, want)
	}
}

// Case U1. At the URL for all servers, a request must have a message to which the gateway can add the server's name. If
// the gateway cannot add the name to a part of a form, that part must not contain line breaks.
func TestCheck_RequestsAtAllServersNameTheirServer(t *testing.T) {
	t.Parallel()
	o := offer("2025-11-25", elicitation("form", "url"))
	o.Aggregated = true
	for name, tt := range map[string]struct {
		params string
		want   commonv1.Code
	}{
		"a form":                          {`{"message":"m","requestedSchema":{"title":"a\nb","properties":{"k":{"description":"c\nd","enum":["x"],"default":"y"}}}}`, allowed},
		"a form without a schema":         {`{"message":"m"}`, allowed},
		"no message":                      {`{"requestedSchema":{}}`, invalid},
		"a message that is a number":      {`{"message":7}`, invalid},
		"a URL without a message":         {`{"mode":"url","url":"https://a.example"}`, invalid},
		"a URL":                           {`{"message":"m","mode":"url","url":"https://a.example"}`, allowed},
		"a key with two lines":            {`{"message":"m","requestedSchema":{"properties":{"a\u2028b":{}}}}`, invalid},
		"a value of a list":               {`{"message":"m","requestedSchema":{"enum":["a\u2028b"]}}`, invalid},
		"a default with two lines":        {`{"message":"m","requestedSchema":{"default":"a\rb"}}`, invalid},
		"a constant with two lines":       {`{"message":"m","requestedSchema":{"const":"a\u0085b"}}`, invalid},
		"a title after a default":         {`{"message":"m","requestedSchema":{"default":"x","title":"a\nb"}}`, allowed},
		"a list after a nested title":     {`{"message":"m","requestedSchema":{"enum":[{"title":"a\nb"},"c\nd"]}}`, invalid},
		"a default nested in an object":   {`{"message":"m","requestedSchema":{"default":{"x":"a\nb"}}}`, allowed},
		"a number as a default":           {`{"message":"m","requestedSchema":{"default":7}}`, allowed},
		"a key at the top":                {`{"message":"m","requestedSchema":{"a\u2029b":1}}`, invalid},
		"a URL with a schema of one line": {`{"message":"m","mode":"url","url":"https://a.example","requestedSchema":{}}`, invalid},
	} {
		checkCode(t, name, o, mcp.MethodElicit, tt.params, tt.want)
		if tt.want == invalid && !strings.Contains(name, "message") && !strings.Contains(name, "URL") {
			alone := o
			alone.Aggregated = false
			checkCode(t, name+", at one server", alone, mcp.MethodElicit, tt.params, allowed)
		}
	}
}
