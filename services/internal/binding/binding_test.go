package binding_test

import (
	"encoding/hex"
	"strings"
	"testing"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/binding"
)

// digest returns the digest of the second example in binding.proto, after the function change has modified the example.
func digest(t *testing.T, change func(*identityv1.Principal, *approvalv1.BoundCall)) string {
	t.Helper()
	p := &identityv1.Principal{
		Tenant: "acme", Subject: "agent:acme/7", Agent: "dev", Session: "s", Run: "r", Groups: []string{"g"}, Owner: "o",
		Chain: []*identityv1.Principal{{Tenant: "acme", Subject: "ben"}},
	}
	definition := make([]byte, 32)
	for i := range definition {
		definition[i] = byte(i)
	}
	call := &approvalv1.BoundCall{ServerIdentity: `stdio ["node","/opt/pay.js"]`, Call: &policyv1.Call{
		Server: "pay", Method: "tools/call", Name: "refund", DefinitionDigest: definition,
		ParamsJson: `{"name":"refund","arguments":{"sum":12.50,"ids":[9007199254740993,-0],"to":"\u00e9\/\t"},"_meta":{"progressToken":1}}`,
	}}
	if change != nil {
		change(p, call)
	}
	d, _, err := binding.Bind(p, call)
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(d[:])
}

func TestBind_MatchesDigestsInContract(t *testing.T) {
	t.Parallel()
	d, params, err := binding.Bind(
		&identityv1.Principal{Tenant: "default", Subject: "ana"},
		&approvalv1.BoundCall{ServerIdentity: "http https://api.example.com/mcp", Call: &policyv1.Call{Server: "github", Name: "list_issues"}},
	)
	if got := hex.EncodeToString(d[:]); err != nil || params != "" || got != "8a2f1857c1a1348d7548e835fb6840abb63ba8c2d83fa01ee526b59bb82937ad" {
		t.Errorf("a call without params: %s, %q, %v", got, params, err)
	}
	d, _, err = binding.Bind(
		&identityv1.Principal{Tenant: "default", Subject: "ana", Person: "corp/ana"},
		&approvalv1.BoundCall{ServerIdentity: "http https://api.example.com/mcp", Call: &policyv1.Call{Server: "github", Name: "list_issues"}},
	)
	if got := hex.EncodeToString(d[:]); err != nil || got != "cfcb8e019f7547ce00f0e818073aa16913941d4996e59e37c4396f8c3b12dfaf" {
		t.Errorf("a call with a person's account: %s, %v", got, err)
	}
	if got := digest(t, nil); got != "df03ec2670fdd1d03b41e6428f7ba222e462d48837ccf50e793f453f217a6ca9" {
		t.Errorf("a call with all fields: %s", got)
	}
}

// Case A1. If a call differs from the approved call, its digest differs. Members that differ between repetitions of a
// call do not change the digest.
func TestBind_DigestChangesWithCall(t *testing.T) {
	t.Parallel()
	same := digest(t, nil)
	replace := func(from, to string) func(*identityv1.Principal, *approvalv1.BoundCall) {
		return func(_ *identityv1.Principal, c *approvalv1.BoundCall) {
			if !strings.Contains(c.Call.ParamsJson, from) {
				t.Fatalf("no %q", from)
			}
			c.Call.ParamsJson = strings.ReplaceAll(c.Call.ParamsJson, from, to)
		}
	}
	for name, change := range map[string]func(*identityv1.Principal, *approvalv1.BoundCall){
		"session, run, groups, owner, token": func(p *identityv1.Principal, _ *approvalv1.BoundCall) {
			p.Session, p.Run, p.Groups, p.Owner, p.TokenId = "x", "x", nil, "", "x"
		},
		"the default method":           func(_ *identityv1.Principal, c *approvalv1.BoundCall) { c.Call.Method = "" },
		"another progress token":       replace(`"progressToken":1`, `"progressToken":"x","traceparent":"00","dev.sluice/approval":"a"`),
		"what the protocol says":       replace(`"progressToken":1`, `"progressToken":"`+strings.Repeat(`\u0061`, 128)+`","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/logLevel":"info"`),
		"other capabilities":           replace(`"progressToken":1`, `"io.modelcontextprotocol/clientCapabilities":{"experimental":{"x":{}}}`),
		"other numbers of clients'":    replace(`"progressToken":1`, `"claudecode/toolUseId":"toolu_1","vscode.conversationId":"c","vscode.requestId":"r"`),
		"no _meta":                     replace(`,"_meta":{"progressToken":1}`, ""),
		"white space":                  replace(`:`, " : "),
		"another spelling of text":     replace(`\u00e9\/`, "é/"),
		"another spelling of a number": replace("12.50", "1250E-2"),
	} {
		if got := digest(t, change); got != same {
			t.Errorf("%s makes another approval", name)
		}
	}
	seen := map[string]string{same: "the call itself"}
	for name, change := range map[string]func(*identityv1.Principal, *approvalv1.BoundCall){
		"tenant":                  func(p *identityv1.Principal, _ *approvalv1.BoundCall) { p.Tenant = "other" },
		"subject":                 func(p *identityv1.Principal, _ *approvalv1.BoundCall) { p.Subject = "other" },
		"agent":                   func(p *identityv1.Principal, _ *approvalv1.BoundCall) { p.Agent = "" },
		"a border between fields": func(p *identityv1.Principal, _ *approvalv1.BoundCall) { p.Subject, p.Agent = "agent:acme/7d", "ev" },
		"person":                  func(p *identityv1.Principal, _ *approvalv1.BoundCall) { p.Person = "ana" },
		"another person":          func(p *identityv1.Principal, _ *approvalv1.BoundCall) { p.Person = "ben" },
		"person in the chain":     func(p *identityv1.Principal, _ *approvalv1.BoundCall) { p.Chain[0].Person = "ana" },
		"person and chain":        func(p *identityv1.Principal, _ *approvalv1.BoundCall) { p.Person, p.Chain[0].Person = "ana", "ana" },
		"chain":                   func(p *identityv1.Principal, _ *approvalv1.BoundCall) { p.Chain = nil },
		"server":                  func(_ *identityv1.Principal, c *approvalv1.BoundCall) { c.Call.Server = "pay2" },
		"identity":                func(_ *identityv1.Principal, c *approvalv1.BoundCall) { c.ServerIdentity += " " },
		"method":                  func(_ *identityv1.Principal, c *approvalv1.BoundCall) { c.Call.Method = "prompts/get" },
		"name":                    func(_ *identityv1.Principal, c *approvalv1.BoundCall) { c.Call.Name = "refunds" },
		"definition":              func(_ *identityv1.Principal, c *approvalv1.BoundCall) { c.Call.DefinitionDigest[31]++ },
		"no definition":           func(_ *identityv1.Principal, c *approvalv1.BoundCall) { c.Call.DefinitionDigest = nil },
		"2^53":                    replace("9007199254740993", "9007199254740992"),
		"a sum":                   replace("12.50", "12.51"),
		"text":                    replace(`\u00e9`, `e\u0301`),
		"an order":                replace("9007199254740993,-0", "-0,9007199254740993"),
		"a key more":              replace(`"sum"`, `"extra":null,"sum"`),
		"another key of _meta":    replace(`"progressToken":1`, `"other":1`),
		"_meta deeper inside":     replace(`"sum"`, `"_meta":{"progressToken":1},"sum"`),
		"_meta that is no object": replace(`{"progressToken":1}`, `[]`),
	} {
		got := digest(t, change)
		if other, ok := seen[got]; ok {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		seen[got] = name
	}
}

func TestBind_StripsParams(t *testing.T) {
	t.Parallel()
	for params, want := range map[string]string{
		``:                               ``,
		` {} `:                           ` {} `,
		`{"name":"a", "arguments":null}`: `{"name":"a"}`,
		`{"arguments":null, "name":"a"}`: `{"name":"a"}`,
		`{ "arguments" : { "x" : 1.50 } , "name":"a"}`:                                   `{ "arguments" : { "x" : 1.50 } , "name":"a"}`,
		`{"_meta":{"progressToken":1,"keep": 1e0 ,"dev.sluice/run":"r"},"name":"a"}`:     `{"_meta":{"keep": 1e0},"name":"a"}`,
		`{"name":"a","_meta":{"progressToken":1,"\u0074raceparent":"x"},"arguments":{}}`: `{"name":"a","arguments":{}}`,
		`{"_meta":{}}`:                   `{}`,
		`{"_meta":null}`:                 `{"_meta":null}`,
		`{"a":1,"arguments":null,"b":2}`: `{"a":1,"b":2}`,
	} {
		_, got, err := binding.Bind(nil, &approvalv1.BoundCall{Call: &policyv1.Call{ParamsJson: params}})
		if err != nil || got != want {
			t.Errorf("%s becomes %s, %v; want %s", params, got, err, want)
		}
	}
}

// Cases A1, I4. Some keys only number the repetitions of a call. If the value of such a key is not just a number or a
// short string, it is part of the approved call. It is then stored, so that approvers see it.
func TestBind_CoversNumberingKeysWithOtherContent(t *testing.T) {
	t.Parallel()
	same, long := digest(t, nil), strings.Repeat("a", 129)
	for _, member := range []string{
		`"progressToken":{"do":"x"}`, `"progressToken":["x"]`, `"progressToken":"` + long + `"`, `"progressToken":true`, `"progressToken":null`,
		`"claudecode/toolUseId":{"account":"x"}`, `"claudecode/toolUseId":"` + long + `"`, `"claudecode/toolUseId":[1]`, `"\u0063laudecode/toolUseId":{"account":"x"}`,
		`"vscode.conversationId":{}`, `"vscode.requestId":"` + strings.Repeat(`\u00e9`, 65) + `"`, `"ClaudeCode/toolUseId":"a"`,
		`"io.modelcontextprotocol/logLevel":{"x":1}`, `"io.modelcontextprotocol/protocolVersion":["2026-07-28"]`,
		`"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1","title":"pay twice"}`, `"io.modelcontextprotocol/clientInfo":{"name":{"x":1},"version":"1"}`,
		`"io.modelcontextprotocol/clientInfo":{"name":"` + long + `"}`, `"io.modelcontextprotocol/clientInfo":{"Name":"c"}`, `"io.modelcontextprotocol/clientInfo":"c"`,
		`"io.modelcontextprotocol/clientInfo":{"name":7}`, `"io.modelcontextprotocol/clientCapabilities":"x"`, `"io.modelcontextprotocol/other":1`,
	} {
		got := digest(t, func(_ *identityv1.Principal, c *approvalv1.BoundCall) {
			c.Call.ParamsJson = strings.Replace(c.Call.ParamsJson, `"progressToken":1`, member, 1)
		})
		_, stripped, err := binding.Bind(nil, &approvalv1.BoundCall{Call: &policyv1.Call{ParamsJson: `{"_meta":{` + member + `}}`}})
		if got == same || err != nil || stripped != `{"_meta":{`+member+`}}` {
			t.Errorf("%s is not bound, or becomes %s, %v", member, stripped, err)
		}
	}
}

// FuzzBind checks that binding a stored call again does not change it.
func FuzzBind(f *testing.F) {
	for _, text := range []string{"", "{}", `{"a":[1.50,"\u00e9",{"b":null}]}`, `{"_meta":{"progressToken":1}}`, `{"a":1e-400}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		first, stripped, err := binding.Bind(nil, &approvalv1.BoundCall{Call: &policyv1.Call{ParamsJson: text}})
		if err != nil {
			return
		}
		second, again, err := binding.Bind(nil, &approvalv1.BoundCall{Call: &policyv1.Call{ParamsJson: stripped}})
		if err != nil || again != stripped || first != second {
			t.Errorf("%q becomes %q, and then %q, %v", text, stripped, again, err)
		}
	})
}

// Calls that differ only in members that are not essential have the same digest. Calls that differ in an essential
// member have different digests.
func TestEssentialDigest(t *testing.T) {
	t.Parallel()
	bare := func(method, params string) string {
		t.Helper()
		d, err := binding.EssentialDigest(nil, &approvalv1.BoundCall{Call: &policyv1.Call{Method: method, Name: "a", ParamsJson: params}})
		if err != nil {
			t.Fatal(err)
		}
		return string(d[:])
	}
	const plain = `{"name":"a","arguments":{"x":1.50}}`
	for _, other := range []string{
		`{"name":"a","arguments":{"x":1.5},"_meta":{"zzz":1}}`, `{"_meta":{"zzz":2},"arguments":{"x":1.5},"name":"a"}`,
		`{"name":"a","arguments":{"x":1.5},"_meta":[]}`, `{"name":"a","zzz":[1],"arguments":{"x":1.5}}`, `{"task":{},"arguments":{"x":15e-1}}`,
	} {
		if bare("tools/call", other) != bare("", plain) {
			t.Errorf("%s asks for something else than %s", other, plain)
		}
	}
	if bare("", `{"name":"a","arguments":{"x":1.51}}`) == bare("", plain) {
		t.Error("other arguments are the same")
	}
	for method, same := range map[string][2]string{
		"prompts/get":    {`{"name":"a","arguments":{"x":"y"},"zzz":1}`, `{"name":"a","arguments":{"x":"y"},"_meta":{"a":1}}`},
		"resources/read": {`{"uri":"x:y","zzz":1}`, `{"uri":"x:y","_meta":{"a":1}}`},
	} {
		if bare(method, same[0]) != bare(method, same[1]) || bare(method, same[0]) == bare(method, strings.Replace(same[1], "y", "z", 1)) {
			t.Errorf("%s: a member that is not essential changes the digest, or an essential one does not", method)
		}
	}
	if bare("x/y", `{"a":1,"_meta":{"zzz":1}}`) != bare("x/y", `{"a":1}`) || bare("x/y", `{"a":1}`) == bare("x/y", `{"a":2}`) {
		t.Error("of another method, what is in _meta counts, or what is not does not")
	}
}
