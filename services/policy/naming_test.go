package policy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

const namedDocument = `version: 1
name: named
rules:
  - {name: prompts, match: {prompt: "p*", server: demo}, action: allow}
  - {name: files, match: {uri: "file:///srv/*"}, action: allow}
  - {name: not-watched, match: {uri: "file:///srv/quiet/*", method: resources/subscribe}, action: deny}
  - {name: not-for-contractors, match: {uri: "*", groups: [contractors]}, action: deny}
`

func serveNamedDocument(t *testing.T) *rpctest.Server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "named.yaml")
	if err := os.WriteFile(file, []byte(namedDocument), 0o600); err != nil {
		t.Fatal(err)
	}
	return serve(t, options{paths: []string{file}})
}

func TestFilterNames(t *testing.T) {
	t.Parallel()
	s := serveNamedDocument(t)
	gateway, operator := policyv1.NewPolicyServiceClient(s.Gateway()), policyv1.NewPolicyServiceClient(s.Person(t, "operator"))
	contractor := ana()
	contractor.Groups = []string{"contractors"}
	ctx := authn.OnBehalfOf(t.Context(), ana())
	for _, tt := range []struct {
		method string
		names  []string
		want   []bool
	}{
		{"prompts/list", []string{"p", "q", "", "p"}, []bool{true, false, false, true}},
		{"resources/list", []string{"file:///srv/a", "file:///etc/a", "", "File:///srv/a", "file:///srv/quiet/a"}, []bool{true, false, false, false, true}},
		{"resources/templates/list", []string{"file:///{a}", "file:///srv/{a}", "file:///etc/{a}", "file:///srv/a"}, []bool{true, true, false, true}},
		{"notifications/resources/updated", []string{"file:///srv/a", "file:///srv/quiet/a"}, []bool{true, false}},
		{"resources/list", nil, nil},
	} {
		got, err := gateway.FilterNames(ctx, &policyv1.FilterNamesRequest{Server: "demo", Method: tt.method, Names: tt.names})
		if err != nil || !slices.Equal(got.GetVisible(), tt.want) || len(got.GetPolicyRevision()) != 64 {
			t.Errorf("%s of %q: %v, %v", tt.method, tt.names, got, err)
		}
		got, err = operator.FilterNames(t.Context(), &policyv1.FilterNamesRequest{Server: "demo", Method: tt.method, Names: tt.names, Subject: contractor})
		if err != nil || len(got.GetVisible()) != len(tt.names) || slices.Contains(got.GetVisible(), true) != (tt.method == "prompts/list") {
			t.Errorf("%s of %q to a contractor: %v, %v", tt.method, tt.names, got, err)
		}
	}
	for why, req := range map[string]*policyv1.FilterNamesRequest{
		"a list of nothing": {Server: "demo", Method: "tools/list", Names: []string{"p"}},
		"no method":         {Server: "demo", Names: []string{"p"}},
		"no server":         {Server: "No server", Method: "prompts/list"},
		"a name too long":   {Server: "demo", Method: "prompts/list", Names: []string{strings.Repeat("p", 4097)}},
		"too many names":    {Server: "demo", Method: "prompts/list", Names: make([]string, 513)},
	} {
		if _, err := gateway.FilterNames(ctx, req); err == nil {
			t.Errorf("%s is accepted", why)
		} else {
			rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
		}
	}
	_, err := gateway.FilterNames(ctx, &policyv1.FilterNamesRequest{Server: "demo", Method: "prompts/list", Subject: ana()})
	rpctest.WantStatus(t, err, codes.InvalidArgument, "SUBJECT_REFUSED")
	_, err = gateway.FilterNames(t.Context(), &policyv1.FilterNamesRequest{Server: "demo", Method: "prompts/list"})
	rpctest.WantStatus(t, err, codes.Unauthenticated, "PRINCIPAL_REQUIRED")
}

// CheckServer considers only the rules that match the caller. Its response contains a method if a call with the method
// and at least one name could be allowed.
func TestCheckServer_ReportsWhetherNamesMatter(t *testing.T) {
	t.Parallel()
	gateway := policyv1.NewPolicyServiceClient(serveNamedDocument(t).Gateway())
	contractor := ana()
	contractor.Groups = []string{"contractors"}
	for _, tt := range []struct {
		server             string
		groups             []string
		prompts, resources bool
		open               []string
	}{
		{"demo", nil, false, false, []string{"completion/complete", "resources/subscribe"}},
		{"other", nil, true, false, []string{"completion/complete", "resources/subscribe"}},
		{"other", []string{"contractors"}, true, false, []string{"completion/complete"}},
	} {
		caller := ana()
		caller.Groups = tt.groups
		got, err := gateway.CheckServer(authn.OnBehalfOf(t.Context(), caller), &policyv1.CheckServerRequest{Server: tt.server, Methods: []string{"completion/complete", "prompts/list", "resources/list", "resources/subscribe"}})
		if err != nil {
			t.Fatal(err)
		}
		if summary := fmt.Sprint(got.GetPromptsAlike(), got.GetResourcesAlike(), got.GetMethods(), got.GetCouldAllow()); summary != fmt.Sprint(tt.prompts, tt.resources, tt.open, true) {
			t.Errorf("%s to %q: %s", tt.server, tt.groups, summary)
		}
	}
}

// TestDecideCall_DecisionAboutANameIsCacheable checks the decisions on prompts and resources. Each response must have
// the field keeping, which allows the gateway to cache the decision.
func TestDecideCall_DecisionAboutANameIsCacheable(t *testing.T) {
	t.Parallel()
	gateway := policyv1.NewPolicyServiceClient(serveNamedDocument(t).Gateway())
	ctx := authn.OnBehalfOf(t.Context(), ana())
	for _, tt := range []struct {
		call *policyv1.Call
		want policyv1.Effect
	}{
		{&policyv1.Call{Method: "completion/complete", Server: "demo", Name: "p", Ref: "ref/prompt"}, policyv1.Effect_EFFECT_ALLOW},
		{&policyv1.Call{Method: "completion/complete", Server: "demo", Name: "p", Ref: "ref/resource"}, policyv1.Effect_EFFECT_DENY},
		{&policyv1.Call{Method: "completion/complete", Server: "demo", Name: "p"}, policyv1.Effect_EFFECT_DENY},
		{&policyv1.Call{Method: "completion/complete", Server: "demo", Name: "file:///srv/{a}", Ref: "ref/resource"}, policyv1.Effect_EFFECT_ALLOW},
		{&policyv1.Call{Method: "resources/read", Server: "demo", Name: "file:///srv/a"}, policyv1.Effect_EFFECT_ALLOW},
	} {
		got, err := gateway.DecideCall(ctx, &policyv1.DecideCallRequest{Call: tt.call})
		if err != nil || got.GetDecision().GetEffect() != tt.want || got.GetKeeping() == nil {
			t.Errorf("%v: %v, %v", tt.call, got, err)
		}
	}
	_, err := gateway.DecideCall(ctx, &policyv1.DecideCallRequest{Call: &policyv1.Call{Method: "completion/complete", Server: "demo", Name: "p", Ref: "ref/tool"}})
	rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
}
