package policy_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/policy"
)

const (
	quorumOfTwo        = "version: 1\nname: p\ntools: {read: {action: allow}}\nrules:\n  - name: pay\n    match: {tool: pay}\n    action: require_approval\n    approvers: [finance]\n    quorum: 2\n"
	quorumProblem      = "rules[0]: can never be approved: it asks for 3 operators or approvers of finance, and there are 2"
	approverSuggestion = "those are fay, finn: give more people a token with role approver or operator, in one of these groups"
)

// quorumOfThree returns a document that requires three approvers, although [records] contains only two.
func quorumOfThree() string { return strings.Replace(quorumOfTwo, "quorum: 2", "quorum: 3", 1) }

func person(tenant string, role authv1.TokenRole) *identityv1.Principal {
	return &identityv1.Principal{Tenant: tenant, Subject: "zed", Role: role}
}

func TestNew_FailsWhenAQuorumCannotBeReached(t *testing.T) {
	t.Parallel()
	dir := folder(t, quorumOfThree())
	cfg := policy.Config{Paths: []string{dir}, SessionCap: 1, Decide: time.Minute, Execute: time.Minute, TestsWithin: time.Minute, People: holdersOf(records()), Source: "sqlite", Data: t.TempDir()}
	_, err := policy.New(t.Context(), cfg, policy.Deps{Tokens: new(authn.Tokens), Signer: signer(t), Log: slog.New(slog.DiscardHandler)})
	if want := dir + "/policy.yaml:5:5: " + quorumProblem + "; " + approverSuggestion; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v\nwant %s", err, want)
	}
	zoe := rpctest.Record("zoe", "default", authv1.TokenRole_TOKEN_ROLE_OPERATOR)
	zoe.Token.Groups = []string{"finance"}
	cfg.Tokens = append(cfg.Tokens, zoe.GetToken())
	svc, err := policy.New(t.Context(), cfg, policy.Deps{Tokens: new(authn.Tokens), Signer: signer(t), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("with one more: %v", err)
	}
	if err := svc.Close(); err != nil {
		t.Error(err)
	}
}

func TestReload_KeepsTheRevisionWhenAQuorumCannotBeReached(t *testing.T) {
	t.Parallel()
	runReload(t, oneDocument(quorumOfTwo), func(r *reloadFixture) {
		r.wantState(allowed, false, false)
		r.write("policy.yaml", quorumOfThree())
		r.wantState(allowed, false, true)
		if log := r.log.String(); !strings.Contains(log, quorumProblem) || !strings.Contains(log, "the old revision stays") {
			t.Errorf("the log is %s", log)
		}
		r.write("policy.yaml", quorumOfTwo)
		r.wantState(allowed, false, false)
	})
}

// Operators and services of the mesh receive findings with suggestions. Viewers receive the same findings without
// suggestions.
func TestGetRevision_OnlyOperatorsGetSuggestionsThatNamePeople(t *testing.T) {
	t.Parallel()
	runReload(t, oneDocument(quorumOfTwo), func(r *reloadFixture) {
		r.wantState(allowed, false, false)
		r.write("policy.yaml", quorumOfThree())
		r.wantState(allowed, false, true)
		for name, tt := range map[string]struct {
			caller *authn.Caller
			told   string
		}{
			"an operator": {&authn.Caller{Person: person("default", authv1.TokenRole_TOKEN_ROLE_OPERATOR)}, approverSuggestion},
			"a role":      {&authn.Caller{Role: authv1.Role_ROLE_GATEWAY}, approverSuggestion},
			"a viewer":    {&authn.Caller{Person: person("default", authv1.TokenRole_TOKEN_ROLE_VIEWER)}, ""},
		} {
			resp, err := r.svc.GetRevision(authn.WithCaller(r.Context(), tt.caller), new(policyv1.GetRevisionRequest))
			if err != nil {
				t.Fatal(err)
			}
			want := []*policyv1.Finding{{
				Severity: policyv1.Severity_SEVERITY_ERROR, Check: "load", Path: r.dir + "/policy.yaml", Line: 5, Column: 5, Message: quorumProblem, Suggestion: tt.told,
			}}
			if diff := cmp.Diff(want, resp.GetRevision().GetRejected(), protocmp.Transform()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	})
}

func TestLintDocuments_WarnsOperatorsWhenOnlyTheOwnerCouldApprove(t *testing.T) {
	t.Parallel()
	bot := rpctest.Record("bot", "default", authv1.TokenRole_TOKEN_ROLE_AGENT)
	bot.Token.Owner = "fay"
	tokens := append(records(), bot)
	const warning = "rules[0]: calls of bot can't be approved"
	doc := strings.Replace(quorumOfTwo, "pay}", "pay, principal: bot}", 1)
	s := serve(t, options{tokens: tokens})
	for name, want := range map[string][]policyv1.Severity{
		"operator": {policyv1.Severity_SEVERITY_WARNING}, "viewer": nil, // may not see all tokens
	} {
		resp, err := policyv1.NewPolicyServiceClient(s.Person(t, name)).LintDocuments(t.Context(), &policyv1.LintDocumentsRequest{Documents: []*policyv1.Document{{Path: "p.yaml", Text: doc}}})
		if err != nil {
			t.Fatal(err)
		}
		var got []policyv1.Severity
		for _, f := range withoutUnlisted(resp.GetFindings()) {
			got = append(got, f.GetSeverity())
			if !strings.HasPrefix(f.GetMessage(), warning) || f.GetLine() != 5 || f.GetCheck() != "approvers" {
				t.Errorf("%s found %v", name, f)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestReload_LogsWarningsAboutTheActiveDocuments(t *testing.T) {
	t.Parallel()
	foreign := rpctest.Record("foreign", "acme", authv1.TokenRole_TOKEN_ROLE_AGENT)
	dir := folder(t, quorumOfTwo)
	synctest.Test(t, func(t *testing.T) {
		log := new(bytes.Buffer)
		svc, _ := build(t, options{paths: []string{dir}, tokens: append(records(), foreign), log: log})
		done := make(chan error, 1)
		ctx, stop := context.WithCancel(t.Context())
		go func() { done <- svc.Run(ctx) }()
		synctest.Wait()
		const warning = "calls of foreign can't be approved"
		if !strings.Contains(log.String(), warning) {
			t.Errorf("at the start the log is %s", log)
		}
		log.Reset()
		write(t, dir, "policy.yaml", quorumOfTwo+"    reason: money\n")
		time.Sleep(maxReloadDelay)
		synctest.Wait()
		if strings.Count(log.String(), warning) != 1 {
			t.Errorf("after a change the log is %s", log)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestDecideCall_ReturnsAllTermsOfAnApproval(t *testing.T) {
	t.Parallel()
	const text = "version: 1\nname: starter\ntools:\n" +
		"  pay: {action: require_approval, decide_within: 1h, execute_within: 90, grant: {calls: 10, within: 2h, critical: true}, idempotent: true}\n" +
		"  note: {action: require_approval, self_confirm: true}\n" +
		"  wire: {action: require_approval, approve_with: {max_age: 5m, acr: [phrh, phr]}}\n" +
		"  mail: {action: require_approval, grant: {calls: 2, within: 1h, critical: true, where: 'args.to == \"team\"'}}\n"
	s := serve(t, options{paths: []string{folder(t, text)}})
	gateway := policyv1.NewPolicyServiceClient(s.Gateway())
	for tool, want := range map[string]*policyv1.Decision{
		"pay": {Idempotent: true, Approval: &policyv1.ApprovalTerms{
			Quorum: 1, DecideWithin: durationpb.New(time.Hour), ExecuteWithin: durationpb.New(90 * time.Second),
			Grant: &policyv1.Grant{Calls: 10, Within: durationpb.New(2 * time.Hour)},
		}},
		"mail": {Approval: &policyv1.ApprovalTerms{Quorum: 1, Grant: &policyv1.Grant{
			Calls: 2, Within: durationpb.New(time.Hour), Where: []string{`args.to == "team"`},
			Scope: "b57e939108dc1adc3e9f65151c9ecf6b8f234d8bc23b9292ec860ae56bded559", // SHA-256 of the condition, preceded by its length in 8 bytes
		}}},
		"note": {Approval: &policyv1.ApprovalTerms{Quorum: 1, SelfConfirm: true}},
		"wire": {Approval: &policyv1.ApprovalTerms{Quorum: 1, ApproveWith: &policyv1.StepUp{MaxAge: durationpb.New(5 * time.Minute), AcrValues: []string{"phr", "phrh"}}}},
	} {
		resp, err := gateway.DecideCall(authn.OnBehalfOf(t.Context(), ana()), &policyv1.DecideCallRequest{Call: &policyv1.Call{
			Server: "demo", Name: tool, ParamsJson: `{"name":"x","arguments":{"to":"team"}}`,
		}})
		if err != nil {
			t.Fatal(err)
		}
		got := &policyv1.Decision{Approval: resp.GetDecision().GetApproval(), Idempotent: resp.GetDecision().GetIdempotent()}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tool, diff)
		}
	}
}

func TestFromFile_AddsConfiguredGroupsToTokens(t *testing.T) {
	t.Parallel()
	f := load(t, "    - {name: a, token: "+oneText+", subject: ana, groups: [ops], role: operator}\n"+
		"    - {name: b, token: "+oneText+"2, subject: ana, tenant: acme, role: operator}\n"+
		"groups: {finance: [ana]}\n", nil)
	cfg, err := policy.FromFile(f, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	got := [][]string{cfg.Tokens[0].GetGroups(), cfg.Tokens[1].GetGroups()}
	if diff := cmp.Diff([][]string{{"ops", "finance"}, nil}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	one := []*policyv1.Document{{Path: "p.yaml", Text: strings.Replace(quorumOfTwo, "quorum: 2", "quorum: 1", 1)}}
	if found := policy.LintFor(f, one); len(found) != 0 {
		t.Errorf("a quorum of one: %v", found)
	}
	two := []*policyv1.Document{{Path: "p.yaml", Text: quorumOfTwo}}
	if found := policy.LintFor(f, two); len(found) != 1 || found[0].GetSeverity() != policyv1.Severity_SEVERITY_ERROR {
		t.Errorf("a quorum of two, with one of two approvers in another tenant: %v", found)
	}
	if found := policy.Lint(two); len(found) != 0 {
		t.Errorf("without tokens: %v", found)
	}
}
