package policy_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/norace"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

const (
	// catalogPairs is the number of random changes to the catalog. minCatalogFlips is the minimum number of calls whose
	// result changes, over all changes. This minimum ensures that the test checks something.
	catalogPairs, minCatalogFlips = 30, 250
)

// diffCatalog returns all calls whose result changes, and the totals of the comparison.
func (l *catalogFixture) diffCatalog(req *policyv1.DiffCatalogRequest) ([]*policyv1.Flip, *policyv1.DiffTotals, error) {
	l.t.Helper()
	stream, err := policyv1.NewPolicyServiceClient(l.Person(l.t, "operator")).DiffCatalog(l.t.Context(), req)
	diff, err := readDiff(l.t, stream, err)
	return diff.GetFlips(), diff.GetTotals(), err
}

// A catalogCall is a call that is evaluated before and after a change to the catalog.
type catalogCall struct {
	tool   *policyv1.ToolDefinition
	digest []byte
	caller engine.Principal
	params string
}

// catalogCalls returns calls of the tools with the given definitions. It uses each of the callers in pairCallers and
// each of the params in pairParams.
func catalogCalls(t *testing.T, tools []*policyv1.ToolDefinition) (out []catalogCall) {
	t.Helper()
	for _, tool := range tools {
		listed, err := catalog.ParseListed(tool.GetName(), tool.GetDefinitionJson())
		if err != nil {
			t.Fatal(err)
		}
		for _, caller := range pairCallers {
			for _, params := range pairParams {
				out = append(out, catalogCall{tool, listed.Digest[:], caller, params})
			}
		}
	}
	return out
}

// effects decides calls.
func (l *catalogFixture) effects(calls []catalogCall) []policyv1.Effect {
	l.t.Helper()
	var out []policyv1.Effect
	for _, c := range calls {
		ctx := authn.OnBehalfOf(l.t.Context(), &identityv1.Principal{Tenant: c.caller.Tenant, Subject: c.caller.Name, Agent: c.caller.Agent, Role: authv1.TokenRole_TOKEN_ROLE_AGENT})
		resp, err := l.policy.DecideCall(ctx, &policyv1.DecideCallRequest{Call: &policyv1.Call{Server: "files", Name: c.tool.GetName(), DefinitionDigest: c.digest, ParamsJson: c.params}})
		if err != nil {
			l.t.Fatal(err)
		}
		out = append(out, resp.GetDecision().GetEffect())
	}
	return out
}

// drawChange returns random changes to the catalog: overrides are set or removed, and definitions are accepted.
func drawChange(r *rand.Rand, tools []string) *policyv1.DiffCatalogRequest {
	req := new(policyv1.DiffCatalogRequest)
	for _, tool := range tools {
		if r.IntN(2) == 0 {
			req.Overrides = append(req.Overrides, &policyv1.OverrideChange{
				Server: "files", Tool: tool, Category: mcpv1.Category(r.IntN(6)), Risk: policyv1.Risk(r.IntN(5)),
			})
		}
	}
	if req.AllWaiting = r.IntN(2) == 0 || len(req.GetOverrides()) == 0; !req.GetAllWaiting() && r.IntN(2) == 0 {
		req.Definitions = []*policyv1.DefinitionChange{{Server: "files", Tool: "write"}}
	}
	return req
}

// make makes the requested changes in the catalog.
func (l *catalogFixture) make(ctx context.Context, req *policyv1.DiffCatalogRequest, waiting map[string][]byte) {
	l.t.Helper()
	for tool, digest := range waiting {
		if !req.GetAllWaiting() && !slices.ContainsFunc(req.GetDefinitions(), func(d *policyv1.DefinitionChange) bool { return d.GetTool() == tool }) {
			continue
		}
		if _, err := l.operator.AcceptPin(ctx, &policyv1.AcceptPinRequest{Server: "files", Tool: tool, DefinitionDigest: digest}); err != nil {
			l.t.Fatal(err)
		}
	}
	for _, o := range req.GetOverrides() {
		l.override(o)
	}
}

// override sets or removes an override of a tool's category and risk.
func (l *catalogFixture) override(o *policyv1.OverrideChange) {
	l.t.Helper()
	req := &policyv1.OverrideToolRequest{Server: o.GetServer(), Tool: o.GetTool(), Etag: l.page(o.GetTool()).GetEtag()}
	if o.GetCategory() != 0 || o.GetRisk() != 0 {
		req.Override = &policyv1.ToolOverride{Category: o.GetCategory(), Risk: o.GetRisk(), Reason: "test"}
	}
	if _, err := l.operator.OverrideTool(l.t.Context(), req); err != nil {
		l.t.Fatal(err)
	}
}

// Random changes to the catalog are first compared and then made. The comparison returns every call whose effect is
// different after the changes have been made. If the document has no conditions, every changed effect that the
// comparison returns for the test's callers is also found in the decisions.
func TestDiffCatalog_NamesTheFlipsOfSeededChanges(t *testing.T) {
	t.Parallel()
	var flips atomic.Int64
	t.Run("seeds", func(t *testing.T) { // returns when all seeds are checked
		pairs := 0
		for seed := uint64(0); pairs < norace.Some(catalogPairs); seed++ {
			r := rand.New(rand.NewPCG(seed, 31)) // the same changes in each run
			document, _ := drawPair(r)
			if checked := offlineDiff(t, document.String(), document.String()); len(checked.GetTotals().GetFindings()) > 0 {
				continue
			}
			pairs++
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				flips.Add(int64(checkSeededChange(t, seed, r, document.String())))
			})
		}
	})
	if t.Logf("%d calls with another result", flips.Load()); flips.Load() < int64(norace.Some(minCatalogFlips)) {
		t.Errorf("only %d results differ", flips.Load())
	}
}

// checkSeededChange checks the comparison of a random change against the decisions before and after the change. It
// returns the number of decisions that differ.
func checkSeededChange(t *testing.T, seed uint64, r *rand.Rand, document string) (flips int) {
	t.Helper()
	opts := pinned(t)
	opts.paths = []string{folder(t, document)}
	l := newCatalogFixture(t, opts)
	old := []*policyv1.ToolDefinition{definition("read", "Reads a file."), definition("write", "Writes a file."), definition("delete", "Deletes a file permanently.")}
	next := []*policyv1.ToolDefinition{old[0], definition("write", "Deletes all files permanently."), definition("delete", "Gets the name of a file.")}
	l.reportOwnList(old...)
	l.reportOwnList(next...)
	if tool := pick(r, "", "read", "write", "delete"); tool != "" {
		l.override(&policyv1.OverrideChange{Server: "files", Tool: tool, Category: mcpv1.Category(1 + r.IntN(5)), Risk: policyv1.Risk(1 + r.IntN(4))})
	}
	waiting := make(map[string][]byte)
	for _, tool := range next[1:] {
		waiting[tool.GetName()] = catalogCalls(t, []*policyv1.ToolDefinition{tool})[0].digest
	}
	req := drawChange(r, []string{"read", "write", "delete"})
	calls := catalogCalls(t, slices.Concat(old, next[1:]))
	before := l.effects(calls)
	named, totals, err := l.diffCatalog(req)
	if err != nil || totals.GetEndedEarly() || totals.GetUncertain() > 0 || int(totals.GetTotal()) != len(named) {
		t.Fatalf("seed %d: %v, %v", seed, totals, err)
	}
	l.make(t.Context(), req, waiting)
	after := l.effects(calls)
	real := make(map[string]bool)
	for i, c := range calls {
		if before[i] == after[i] {
			continue
		}
		flips++
		real[fmt.Sprintf("%x %s %v %v", c.digest, c.caller.Name, before[i], after[i])] = true
		if !namesCall(named, &c, before[i], after[i]) {
			t.Errorf("seed %d: %s by %v, %s: %v becomes %v, and the comparison has only\n%s\n%s\n%v", seed, c.tool.GetDefinitionJson(), c.caller, c.params, before[i], after[i], flipLines(named), document, req)
		}
	}
	if strings.Contains(document, "when:") {
		return flips // conditions are taken to be independent, so some of the flips may be impossible
	}
	checkReal(t, seed, named, real)
	return flips
}

// checkReal checks that each changed effect that the comparison reports was also found when calls were made. It checks
// only the callers for which calls were made. The parameter real contains the changes that were found.
func checkReal(t *testing.T, seed uint64, named []*policyv1.Flip, real map[string]bool) {
	t.Helper()
	for _, f := range named {
		for _, caller := range pairCallers {
			tried := callerNamed(f, &caller) && f.GetSubject().GetSubject() == caller.Name && f.GetSubject().GetAgent() == caller.Agent
			tried = tried || f.GetAnyCaller() && caller.Name == "zoe"
			if was, is := f.GetBefore().GetEffect(), f.GetAfter().GetEffect(); tried && was != is && !real[fmt.Sprintf("%x %s %v %v", f.GetCall().GetDefinitionDigest(), caller.Name, was, is)] {
				t.Errorf("seed %d: no call by %v has the flip %s", seed, caller, flipLines([]*policyv1.Flip{f}))
			}
		}
	}
}

// namesCall reports whether the flips contain the call with the given change of its effect.
func namesCall(flips []*policyv1.Flip, c *catalogCall, before, after policyv1.Effect) bool {
	return slices.ContainsFunc(flips, func(f *policyv1.Flip) bool {
		return slices.Equal(f.GetCall().GetDefinitionDigest(), c.digest) && f.GetCall().GetName() == c.tool.GetName() &&
			callerNamed(f, &c.caller) && f.GetBefore().GetEffect() == before && f.GetAfter().GetEffect() == after
	})
}

// callerNamed reports whether a flip is about the calls of a caller.
func callerNamed(f *policyv1.Flip, caller *engine.Principal) bool {
	return f.GetAnyCaller() || slices.ContainsFunc(append([]*identityv1.Principal{f.GetSubject()}, f.GetFurtherSubjects()...), func(p *identityv1.Principal) bool {
		return p.GetSubject() == caller.Name || p.GetAgent() == caller.Agent && caller.Agent != ""
	})
}

// Calls that are newly allowed are sent first, even if the tools of other calls come first. The comparison does not
// change the catalog.
func TestDiffCatalog_OpeningsComeFirst(t *testing.T) {
	t.Parallel()
	l := newCatalogFixture(t, pinned(t))
	first, second := definition("delete_file", "Deletes a file permanently."), definition("get_file", "Gets a file.")
	l.reportOwnList(first, second)
	flips, totals, err := l.diffCatalog(&policyv1.DiffCatalogRequest{Overrides: []*policyv1.OverrideChange{
		{Server: "files", Tool: "get_file", Category: mcpv1.Category_CATEGORY_DESTRUCTIVE, Risk: policyv1.Risk_RISK_CRITICAL},
		{Server: "files", Tool: "delete_file", Category: mcpv1.Category_CATEGORY_READ, Risk: policyv1.Risk_RISK_LOW},
	}})
	if err != nil || len(flips) != 2 || flips[0].GetCall().GetName() != "delete_file" || flips[0].GetBefore().GetEffect() != requireApproval || flips[0].GetAfter().GetEffect() != allow {
		t.Fatalf("%v\n%s", err, flipLines(flips))
	}
	if flips[1].GetKind() != policyv1.FlipKind_FLIP_KIND_CLOSES || totals.GetOpened() != 1 || totals.GetTools() != 2 || totals.GetGenerated() == 0 || totals.GetGenerated() >= totals.GetCompared() {
		t.Errorf("%s\n%v", flipLines(flips), totals)
	}
	l.wantDecision(allow, noCode, second)
	if l.page("get_file").GetOverride() != nil {
		t.Error("the comparison has set an override")
	}
}

// A quarantine can end without a change to the tool's category and risk. Therefore, if an override changes a tool that
// is in quarantine, the comparison treats the tool as if it were not in quarantine.
func TestDiffCatalog_QuarantinesDoNotCount(t *testing.T) {
	t.Parallel()
	l := newCatalogFixture(t, pinned(t))
	l.reportOwnList(definition("delete_file", "Deletes a file permanently."))
	if _, err := l.operator.SetQuarantine(t.Context(), &policyv1.SetQuarantineRequest{Server: "files", Tool: "delete_file", Quarantined: true, Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	read := &policyv1.OverrideChange{Server: "files", Tool: "delete_file", Category: mcpv1.Category_CATEGORY_READ, Risk: policyv1.Risk_RISK_LOW}
	if _, totals, err := l.diffCatalog(&policyv1.DiffCatalogRequest{Overrides: []*policyv1.OverrideChange{read}}); err != nil || totals.GetOpened() != 1 {
		t.Errorf("%v, %v", totals, err)
	}
}

// A rule distinguishes callers by agent and by subject, and the change newly allows no call by the compared callers.
// The totals name the rule that may allow calls by other callers. A stricter category allows no new calls, and then the
// totals name no rule.
func TestDiffCatalog_NamesRulesThatMayOpenOtherCalls(t *testing.T) {
	t.Parallel()
	opts := pinned(t)
	opts.paths = []string{folder(t, `version: 1
name: a
server: files
default: deny
rules:
  - {name: reads, match: {category: read, agent: bot}, when: 'caller.subject == "svc"', action: allow}
  - {name: deletes, match: {category: destructive}, action: deny}
`)}
	l := newCatalogFixture(t, opts)
	l.reportOwnList(definition("delete_file", "Deletes a file permanently."), definition("get_file", "Gets a file."))
	class := func(tool string, category mcpv1.Category, risk policyv1.Risk) *policyv1.DiffTotals {
		_, totals, err := l.diffCatalog(&policyv1.DiffCatalogRequest{Overrides: []*policyv1.OverrideChange{{Server: "files", Tool: tool, Category: category, Risk: risk}}})
		if err != nil {
			t.Fatal(err)
		}
		return totals
	}
	opens := class("delete_file", mcpv1.Category_CATEGORY_READ, policyv1.Risk_RISK_LOW)
	if opens.GetOpened() != 0 || !slices.ContainsFunc(opens.GetMayOpen(), func(r *policyv1.RuleRef) bool { return r.GetRule() == "reads" }) {
		t.Errorf("a class that opens: %v", opens)
	}
	if closes := class("get_file", mcpv1.Category_CATEGORY_DESTRUCTIVE, policyv1.Risk_RISK_CRITICAL); closes.GetOpened() != 0 || len(closes.GetMayOpen()) > 0 {
		t.Errorf("a class that closes: %v", closes)
	}
}

func TestDiffCatalog_Refuses(t *testing.T) {
	t.Parallel()
	opts := pinned(t)
	opts.tokens = append(records(), otherTenantTokens()...)
	l := newCatalogFixture(t, opts)
	l.reportOwnList(definition("get_file", "Gets a file."))
	read := mcpv1.Category_CATEGORY_READ
	for name, tt := range map[string]struct {
		req    *policyv1.DiffCatalogRequest
		code   codes.Code
		reason string
	}{
		"no change":             {&policyv1.DiffCatalogRequest{}, codes.InvalidArgument, "CHANGE_REQUIRED"},
		"an unknown server":     {&policyv1.DiffCatalogRequest{Overrides: []*policyv1.OverrideChange{{Server: "other", Tool: "get_file", Category: read}}}, codes.NotFound, "SERVER_UNKNOWN"},
		"an unknown tool":       {&policyv1.DiffCatalogRequest{Overrides: []*policyv1.OverrideChange{{Server: "files", Tool: "other", Category: read}}}, codes.NotFound, "TOOL_UNKNOWN"},
		"nothing waits":         {&policyv1.DiffCatalogRequest{Definitions: []*policyv1.DefinitionChange{{Server: "files", Tool: "get_file"}}}, codes.NotFound, "DEFINITION_UNKNOWN"},
		"an unknown definition": {&policyv1.DiffCatalogRequest{Definitions: []*policyv1.DefinitionChange{{Server: "files", Tool: "get_file", DefinitionDigest: make([]byte, 32)}}}, codes.NotFound, "DEFINITION_UNKNOWN"},
	} {
		_, _, err := l.diffCatalog(tt.req)
		t.Log(name)
		rpctest.WantStatus(t, err, tt.code, tt.reason)
	}
	stream, err := policyv1.NewPolicyServiceClient(l.Person(t, "acme-viewer")).DiffCatalog(t.Context(), &policyv1.DiffCatalogRequest{AllWaiting: true})
	if err == nil {
		_, err = stream.Recv()
	}
	rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
}
