package policy_test

import (
	"strings"
	"testing"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
)

const strictRefunds = `version: 1
name: money
default: deny
tools:
  refund: {action: allow, forward: strict, timeout: 5s}
`

func refundDefinition(schema string) *policyv1.ToolDefinition {
	return &policyv1.ToolDefinition{Name: "refund", DefinitionJson: `{"name":"refund","inputSchema":` + schema + `}`}
}

// decideArguments returns the decision on a call to the tool refund with the given arguments. The caller is ana, whose
// session listed the given definition.
func (l *catalogFixture) decideArguments(of *policyv1.ToolDefinition, arguments string) *policyv1.DecideCallResponse {
	l.t.Helper()
	listed, err := catalog.ParseListed("refund", of.GetDefinitionJson())
	if err != nil {
		l.t.Fatal(err)
	}
	resp, err := l.policy.DecideCall(asAna(l.t.Context()), &policyv1.DecideCallRequest{Call: &policyv1.Call{
		Server: "files", Name: "refund", DefinitionDigest: listed.Digest[:], ParamsJson: `{"name":"refund","arguments":` + arguments + `}`,
	}})
	if err != nil {
		l.t.Fatal(err)
	}
	return resp
}

// The server lists several definitions of a tool, one after the other. The arguments of a call must satisfy the schema
// of the definition that the caller's session listed.
func TestDecideCall_ChecksArgumentsAgainstTheDefinitionOfTheCall(t *testing.T) {
	t.Parallel()
	opts := options{paths: []string{folder(t, strictRefunds)}, servers: map[string]catalog.Settings{"files": {Mode: catalog.Off}}}
	l := newCatalogFixture(t, opts)
	older, newer := refundDefinition(`{"type":"object","properties":{"amount":{"type":"number"}}}`), refundDefinition(`{"type":"object","properties":{"amount":{"type":"string"}}}`)
	unlisted := refundDefinition(`{"type":"object","additionalProperties":true}`)
	unusable := refundDefinition(`{"type":"object","properties":{"amount":{"$ref":"https://example.com/x"}}}`)
	l.reportOwnList(older)
	l.reportOwnList(newer)
	l.reportOwnList(unusable)
	for range 2 { // the second time with cached schemas
		for _, tt := range []struct {
			definition *policyv1.ToolDefinition
			arguments  string
			refused    string
		}{
			{older, `{"amount":5}`, ""},
			{older, `{"amount":"5"}`, "arguments.amount must be a number, not a string"},
			{newer, `{"amount":"5"}`, ""},
			{newer, `{"amount":5}`, "arguments.amount must be a string, not a number"},
			{newer, `{"Amount":"5"}`, "arguments.Amount is not declared by the schema"},
			{unlisted, `{}`, "the tool's definition is not known here"},
			{unusable, `{}`, "the tool's input schema can't be used"},
		} {
			resp := l.decideArguments(tt.definition, tt.arguments)
			d := resp.GetDecision()
			if resp.GetKeeping() != nil {
				t.Errorf("the decision on %s may be reused", tt.arguments)
			}
			if tt.refused == "" {
				if d.GetEffect() != allow || d.GetTimeout().GetSeconds() != 5 || d.GetTimeoutRule().GetRule() != "tools.refund" {
					t.Errorf("%s: %v", tt.arguments, d)
				}
				continue
			}
			if d.GetEffect() != deny || d.GetCode() != commonv1.Code_CODE_TYPE_ERROR || !strings.HasPrefix(d.GetMessage(), tt.refused) || d.GetRule().GetRule() != "tools.refund" {
				t.Errorf("%s of %s: %v", tt.arguments, tt.definition.GetDefinitionJson(), d)
			}
		}
	}
}

// An operator explains a call without naming a definition. Sluice checks the arguments against the newest definition.
func TestExplainCall_ChecksArguments(t *testing.T) {
	t.Parallel()
	l := newCatalogFixture(t, options{paths: []string{folder(t, strictRefunds)}, servers: map[string]catalog.Settings{"files": {Mode: catalog.FirstUse}}})
	l.reportOwnList(refundDefinition(`{"type":"object","properties":{"amount":{"type":"number"}}}`))
	operator := policyv1.NewPolicyServiceClient(l.Person(t, "operator"))
	resp, err := operator.ExplainCall(t.Context(), &policyv1.ExplainCallRequest{
		Call: &policyv1.Call{Server: "files", Name: "refund", ParamsJson: `{"arguments":{"note":"x"}}`}, Subject: ana(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range resp.GetRules() {
		for _, c := range rule.GetChecks() {
			if c.GetName() == "forward" && c.GetWant() == "strict" && !c.GetHeld() && c.GetGot() == "arguments.note is not declared by the schema" {
				return
			}
		}
	}
	t.Errorf("no check names the wrong argument: %v", resp)
}
