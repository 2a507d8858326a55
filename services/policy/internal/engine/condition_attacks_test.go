package engine_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// TestDecide_ArgumentsOfAnotherTypeAreNotConverted checks amounts that are not numbers. It uses a rule that allows
// small amounts, and a rule that denies large amounts. Case P9.
func TestDecide_ArgumentsOfAnotherTypeAreNotConverted(t *testing.T) {
	t.Parallel()
	allows := conditionRule(engine.ActionAllow, "args.amount <= 100")
	denies := conditionRule(engine.ActionDeny, "args.amount > 100")
	for _, amount := range []string{`"99999"`, `"5"`, `"1e2"`, `"0x10"`, `""`, `true`, `null`, `[5]`, `{"value":5}`, `"5 "`} {
		params := `{"arguments":{"amount":` + amount + `}}`
		wantCode(t, allows, params, engine.TypeError, "args.amount")
		wantCode(t, denies, params, engine.TypeError, "args.amount")
	}
	for amount, code := range map[string]engine.Code{`5`: "", `1e2`: "", `100.0`: "", `100.01`: engine.DeniedByDefault, `101`: engine.DeniedByDefault} {
		wantCode(t, allows, `{"arguments":{"amount":`+amount+`}}`, code, "")
	}
}

// TestDecide_AMissingArgumentDoesNotEvadeARuleThatDenies uses a rule that denies calls with any region except one. The
// rule must also deny a call that contains no region. Case P10.
func TestDecide_AMissingArgumentDoesNotEvadeARuleThatDenies(t *testing.T) {
	t.Parallel()
	denies := conditionRule(engine.ActionDeny, `args.region != "eu"`)
	for _, params := range []string{
		"", `{}`, `{"arguments":{}}`, `{"arguments":null}`, `{"arguments":{"Region":"eu"}}`, `{"arguments":{"regions":["eu"]}}`, `{"region":"eu"}`,
		`{"arguments":{"region":"eu","_region":"us"}}`,
	} {
		wantCode(t, denies, params, engine.TypeError, "region")
	}
	for _, params := range []string{`{"arguments":{"region":"us"}}`, `{"arguments":{"region":null}}`, `{"arguments":{"region":["eu"]}}`, `{"arguments":{"region":"EU"}}`} {
		wantCode(t, denies, params, engine.DeniedByRule, "")
	}
	wantCode(t, denies, `{"arguments":{"region":"eu"}}`, "", "")
}

// conditionRule returns a document with a conditional rule. If the rule denies, another rule allows all calls.
func conditionRule(action engine.Action, when string) engine.Document {
	d := engine.Document{Name: "d", Default: engine.DefaultDeny, Rules: []engine.Rule{{Name: "r", Match: engine.Match{Tool: []string{"t"}}, Action: action, When: when}}}
	if action != engine.ActionAllow {
		d.Rules = append(d.Rules, engine.Rule{Tool: "t", Action: engine.ActionAllow})
	}
	return d
}

// wantCode checks the code of a decision and a part of its message. If code is empty, the call must be allowed.
func wantCode(t *testing.T, d engine.Document, params string, code engine.Code, message string) {
	t.Helper()
	set, err := engine.Compile([]engine.Document{d}, options)
	if err != nil {
		t.Fatal(err)
	}
	got := set.Decide(engine.Call{
		Server: "s", Tool: "t", Params: params, Facts: callable, Subject: engine.Subject{Caller: engine.Principal{Tenant: "default", Name: "ana"}},
	})
	if got.Code != code || (got.Effect == engine.Allow) != (code == "") || !strings.Contains(got.Message, message) {
		t.Errorf("%s for %s: %s, %s, %q; want %q, with %q", d.Rules[0].When, params, got.Effect, got.Code, got.Message, code, message)
	}
}
