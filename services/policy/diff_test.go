package policy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/norace"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/policy"
)

// flipLines describes flips, one per line.
func flipLines(flips []*policyv1.Flip) string {
	var out []string
	for _, f := range flips {
		name := f.GetCall().GetName()
		if f.GetPattern() != "" {
			name = f.GetPattern()
		}
		if f.GetCall().GetMethod() != "" {
			name = f.GetCall().GetMethod() + " " + name
		}
		line := fmt.Sprintf("%s %s/%s %s -> %s subjects=%d any=%t calls=%d", enum.Name(f.GetKind()), f.GetCall().GetServer(), name,
			enum.Name(f.GetBefore().GetEffect()), enum.Name(f.GetAfter().GetEffect()), f.GetSubjects(), f.GetAnyCaller(), f.GetCalls())
		for _, c := range f.GetConditions() {
			line += fmt.Sprintf(" if %s %s", c.GetCondition(), enum.Name(c.GetResult()))
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

// A diffClient receives the stream of responses of a comparison.
type diffClient[R any] interface{ Recv() (R, error) }

// readDiff returns the totals and all flips of a comparison. The totals must be sent once, at the end.
func readDiff[R interface {
	GetFlips() []*policyv1.Flip
	GetTotals() *policyv1.DiffTotals
}](t testing.TB, stream diffClient[R], err error) (*policyv1.DiffRevisionsResponse, error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	diff := new(policyv1.DiffRevisionsResponse)
	for {
		resp, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if diff.Flips = append(diff.Flips, resp.GetFlips()...); resp.GetTotals() == nil {
			continue
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Fatalf("after the totals: %v", err)
		}
		diff.Totals = resp.GetTotals()
		return diff, nil
	}
}

// diffRevisions compares documents.
func diffRevisions(t *testing.T, client policyv1.PolicyServiceClient, req *policyv1.DiffRevisionsRequest) (*policyv1.DiffRevisionsResponse, error) {
	t.Helper()
	stream, err := client.DiffRevisions(t.Context(), req)
	return readDiff(t, stream, err)
}

func documentOf(text string) []*policyv1.Document {
	return []*policyv1.Document{{Path: "a.yaml", Text: text}}
}

// The active documents are compared with a draft. The draft allows a tool that was hidden, removes a condition, and
// denies a tool. The comparison includes a recorded call that was made seven times.
func TestDiffRevisions_ComparesADraftWithTheActiveDocuments(t *testing.T) {
	t.Parallel()
	l := accessFixture(t)
	client := policyv1.NewPolicyServiceClient(l.Person(t, "viewer"))
	draft := strings.NewReplacer(
		"secret: {action: hide}", "secret: {action: allow}",
		`write: {action: allow, when: args.path == "/a", otherwise: {action: deny, reason: only a}}`, "write: {action: allow}",
		"list: {rate_limit: {max: 3, window: 60}}", "list: {action: deny}",
	).Replace(accessPolicy)
	recorded := &policyv1.RecordedCall{
		Call: &policyv1.Call{Server: "files", Method: "tools/call", Name: "list"}, Count: 7, DecisionId: "x",
		Subject: rpctest.Principal("default", "recorded"),
	}
	resp, err := diffRevisions(t, client, &policyv1.DiffRevisionsRequest{Documents: documentOf(draft), Recorded: []*policyv1.RecordedCall{recorded}})
	if err != nil {
		t.Fatal(err)
	}
	got := flipLines(resp.GetFlips())
	for _, want := range []string{
		"opens files/secret deny -> allow subjects=2 any=true calls=0",
		`opens files/write deny -> allow subjects=2 any=true calls=0 if args.path == "/a" false`,
		"closes files/list allow -> deny subjects=3 any=true calls=7",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if !strings.HasPrefix(got, "opens") || resp.GetTotals().GetOpened() != 2 || resp.GetTotals().GetTotal() != int64(len(resp.GetFlips())) || resp.GetTotals().GetEndedEarly() || resp.GetTotals().GetUncertain() != 0 {
		t.Errorf("opened %d, total %d, ended early %t, uncertain %d:\n%s", resp.GetTotals().GetOpened(), resp.GetTotals().GetTotal(), resp.GetTotals().GetEndedEarly(), resp.GetTotals().GetUncertain(), got)
	}
	same, err := diffRevisions(t, client, &policyv1.DiffRevisionsRequest{Documents: documentOf(accessPolicy), OldDocuments: documentOf(accessPolicy)})
	if err != nil || same.GetTotals().GetTotal() != 0 || same.GetTotals().GetGenerated() == 0 || same.GetTotals().GetCompared() <= same.GetTotals().GetGenerated() {
		t.Errorf("the same documents differ: %v, %v", same, err)
	}
}

// The flips (calls whose result changes) are larger than what the service keeps in memory. Each flip is sent once.
// Flips that allow calls are sent first, although they come last in the documents.
func TestDiffRevisions_SendsThousandsOfFlips(t *testing.T) {
	t.Parallel()
	opened, closed := int64(norace.Some(1_000)), int64(norace.Some(3_500))
	reason := strings.Repeat("a long reason ", 70)
	entries := func(prefix, action string, count int64) string {
		var out strings.Builder
		for i := range count {
			fmt.Fprintf(&out, "  %s%d: {action: %s}\n", prefix, i, action)
		}
		return out.String()
	}
	document := func(first, second string) []*policyv1.Document {
		return documentOf("version: 1\nname: large\nserver: files\ndefault: deny\ntools:\n" + entries("closed", first, closed) + entries("opened", second, opened))
	}
	denied := "deny, reason: " + reason
	l := accessFixture(t)
	client := policyv1.NewPolicyServiceClient(l.Person(t, "viewer"))
	diff, err := diffRevisions(t, client, &policyv1.DiffRevisionsRequest{OldDocuments: document("allow", denied), Documents: document(denied, "allow")})
	if err != nil {
		t.Fatal(err)
	}
	totals, first, names := diff.GetTotals(), 0, make(map[string]int)
	for i, f := range diff.GetFlips() {
		if names[f.GetCall().GetName()]++; f.GetKind() == policyv1.FlipKind_FLIP_KIND_OPENS && i == first {
			first++
		}
	}
	if totals.GetEndedEarly() || totals.GetOpened() != opened || totals.GetClosed() != closed || totals.GetTotal() != opened+closed || len(totals.GetFindings()) > 0 {
		t.Errorf("opened %d, closed %d, total %d, ended early: %t, %v", totals.GetOpened(), totals.GetClosed(), totals.GetTotal(), totals.GetEndedEarly(), totals.GetFindings())
	}
	if len(diff.GetFlips()) != int(opened+closed) || len(names) != int(opened+closed) || first != int(opened) {
		t.Errorf("%d flips of %d tools, and the first %d open calls", len(diff.GetFlips()), len(names), first)
	}
}

func TestDiffRevisions_Refuses(t *testing.T) {
	t.Parallel()
	l := accessFixture(t)
	other := policyv1.NewPolicyServiceClient(l.Person(t, "acme-viewer"))
	_, err := diffRevisions(t, other, &policyv1.DiffRevisionsRequest{Documents: documentOf(accessPolicy)})
	rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
	client := policyv1.NewPolicyServiceClient(l.Person(t, "operator"))
	_, err = diffRevisions(t, client, &policyv1.DiffRevisionsRequest{OldRevision: strings.Repeat("0", 64), Documents: documentOf(accessPolicy)})
	rpctest.WantStatus(t, err, codes.NotFound, "REVISION_UNKNOWN")
	resp, err := diffRevisions(t, client, &policyv1.DiffRevisionsRequest{Documents: documentOf("version: 2\n")})
	if err != nil || len(resp.GetTotals().GetFindings()) == 0 || resp.GetTotals().GetCompared() != 0 {
		t.Errorf("a document that does not load: %v, %v", resp, err)
	}
}

// There is no catalog. The comparison uses examples for the tools, callers and servers that a change may affect.
func TestDiff_ComparesExamplesWithoutACatalog(t *testing.T) {
	t.Parallel()
	const head = "version: 1\nname: a\n"
	for name, tt := range map[string]struct{ before, after, want string }{
		"the default":                {"default: deny", "default: allow", "opens any-other-server/* deny -> allow subjects=1 any=true calls=0"},
		"a pattern":                  {"server: s\ndefault: deny", "server: s\ndefault: deny\nrules: [{name: r, match: {tool: 'x_*'}, action: allow}]", "opens s/x_* deny -> allow subjects=1 any=true calls=0"},
		"a group":                    {"server: s\ndefault: deny", "server: s\ndefault: deny\nrules: [{name: r, match: {tool: x, groups: dev}, action: allow}]", "opens s/x deny -> allow subjects=1 any=false calls=0"},
		"a caller in a condition":    {"server: s\ndefault: deny", "server: s\ndefault: deny\ntools: {x: {action: allow, when: 'caller.subject == \"ana\"'}}", "opens s/x deny -> allow subjects=1 any=false calls=0"},
		"a method":                   {"server: s\ndefault: deny", "server: s\ndefault: deny\nrules: [{name: r, match: {prompt: 'p*'}, action: allow}]", "opens s/prompts/get p* deny -> allow subjects=1 any=true calls=0"},
		"a class":                    {"server: s\ndefault: deny", "server: s\ndefault: deny\nrules: [{name: r, match: {category: read, risk: low}, action: allow}]", "opens s/* deny -> allow subjects=1 any=true calls=0"},
		"another age of a sign-in":   {"server: s\ntools: {x: {action: require_approval, approve_with: {max_age: 5m}}}", "server: s\ntools: {x: {action: require_approval, approve_with: {max_age: 1h}}}", "terms s/x require_approval -> require_approval subjects=1 any=true calls=0"},
		"a longer list of approvers": {"server: s\ntools: {x: {action: require_approval, quorum: 2}}", "server: s\ntools: {x: {action: require_approval}}", "terms s/x require_approval -> require_approval subjects=1 any=true calls=0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resp := offlineDiff(t, head+tt.before, head+tt.after)
			if len(resp.GetTotals().GetFindings()) > 0 {
				t.Fatal(resp.GetTotals().GetFindings())
			}
			if got := flipLines(resp.GetFlips()); !strings.Contains(got, tt.want) {
				t.Errorf("%q is missing in\n%s", tt.want, got)
			}
			same := offlineDiff(t, head+tt.before, head+tt.before)
			if diff := cmp.Diff("", flipLines(same.GetFlips())); diff != "" || len(same.GetTotals().GetMayOpen()) > 0 {
				t.Errorf("the same documents differ (-want +got):\n%s%v", diff, same.GetTotals().GetMayOpen())
			}
		})
	}
}

func offlineDiff(t *testing.T, before, after string) *policyv1.DiffRevisionsResponse {
	t.Helper()
	resp, err := policy.Diff(t.Context(), nil, noEnv, documentOf(before), documentOf(after))
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// These changes make calls less restricted, but the example calls of the comparison do not include any of these calls.
// The result then names a rule that was added, changed or removed, so that it does not look as if the change allows
// nothing new.
func TestDiff_NamesRulesThatMayOpenOtherCalls(t *testing.T) {
	t.Parallel()
	const head = "version: 1\nname: a\nserver: s\n"
	for name, tt := range map[string]struct{ before, after, want string }{
		"patterns that intersect":         {"rules: [{name: r, match: {tool: 'get_*'}, action: allow}, {name: d, match: {tool: '*_secret'}, action: deny}]", "rules: [{name: r, match: {tool: 'get_*'}, action: allow}]", "a/d"},
		"URIs that intersect":             {"rules: [{name: r, match: {uri: 'file:///docs/*'}, action: allow}, {name: d, match: {uri: '*secret*'}, action: deny}]", "rules: [{name: r, match: {uri: 'file:///docs/*'}, action: allow}]", "a/d"},
		"an agent and a condition":        {"default: deny", "default: deny\nrules: [{name: r, match: {tool: x, agent: bot}, when: 'caller.subject == \"ana\"', action: allow}]", "a/r"},
		"two groups":                      {"rules: [{name: r, match: {tool: x, groups: dev}, action: allow}, {name: d, match: {tool: x, groups: contractor}, action: deny}]", "rules: [{name: r, match: {tool: x, groups: dev}, action: allow}]", "a/d"},
		"a tool in a condition":           {"default: deny", "default: deny\nrules: [{name: r, match: {tool: '*'}, when: 'call.tool == \"drop_db\"', action: allow}]", "a/r"},
		"annotations":                     {"default: deny", "default: deny\nrules: [{name: r, match: {annotations: {readOnlyHint: true}}, action: allow}]", "a/r"},
		"a category and a tag":            {"default: deny", "default: deny\nrules: [{name: r, match: {category: read, tags: pii}, action: allow}]", "a/r"},
		"names outside of other patterns": {"rules: [{name: d, match: {tool: '*-*'}, action: deny}]", "rules: [{name: d, match: {tool: '*-*'}, action: deny}, {name: r, match: {tool: '*'}, action: allow}]", "a/r"},
		"an approval":                     {"default: allow\nrules: [{name: r, match: {groups: dev}, action: allow}, {name: d, match: {tags: pii, category: read}, action: require_approval}]", "default: allow\nrules: [{name: r, match: {groups: dev}, action: allow}]", "a/d"},
		"classes without a conflict":      {"rules: [{name: r, match: {tool: 'get_*'}, action: require_approval, approve_with: {acr: a}}, {name: d, match: {tool: '*_secret'}, action: require_approval, approve_with: {acr: b}}]", "rules: [{name: r, match: {tool: 'get_*'}, action: require_approval, approve_with: {acr: a}}, {name: d, match: {tool: '*_secret'}, action: require_approval, approve_with: {acr: a}}]", "a/d"},
		"approvers without a conflict":    {"rules: [{name: r, match: {tool: 'get_*'}, action: require_approval, approvers: [ops]}, {name: d, match: {tool: '*_secret'}, action: require_approval, approvers: [security]}]", "rules: [{name: r, match: {tool: 'get_*'}, action: require_approval, approvers: [ops]}, {name: d, match: {tool: '*_secret'}, action: require_approval, approvers: [ops]}]", "a/d"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resp := offlineDiff(t, head+tt.before, head+tt.after)
			if len(resp.GetTotals().GetFindings()) > 0 {
				t.Fatal(resp.GetTotals().GetFindings())
			}
			named := slices.ContainsFunc(resp.GetTotals().GetMayOpen(), func(r *policyv1.RuleRef) bool { return r.GetDocument()+"/"+r.GetRule() == tt.want })
			if !named && resp.GetTotals().GetOpened() == 0 {
				t.Errorf("nothing opens, and %v may open calls; want %s", resp.GetTotals().GetMayOpen(), tt.want)
			}
		})
	}
}

func TestDiff_ChangesThatOnlyRefuseOpenNothing(t *testing.T) {
	t.Parallel()
	const head = "version: 1\nname: a\nserver: s\ndefault: deny\n"
	const before = "rules: [{name: r, match: {tool: 'get_*', groups: dev}, action: allow}, {name: d, match: {tool: '*_secret'}, action: deny, reason: no secrets}]"
	for name, after := range map[string]string{
		"another deny":   "rules: [{name: r, match: {tool: 'get_*', groups: dev}, action: allow}, {name: d, match: {tool: '*_secret'}, action: deny, reason: no secrets}, {name: e, match: {tool: '*', groups: guests}, action: deny}]",
		"no allow":       "rules: [{name: d, match: {tool: '*_secret'}, action: deny, reason: no secrets}]",
		"another reason": "rules: [{name: r, match: {tool: 'get_*', groups: dev}, action: allow}, {name: secrets, match: {tool: '*_secret'}, action: deny, reason: ask ana}]",
	} {
		if resp := offlineDiff(t, head+before, head+after); resp.GetTotals().GetOpened() > 0 || len(resp.GetTotals().GetMayOpen()) > 0 || len(resp.GetTotals().GetFindings()) > 0 {
			t.Errorf("%s: %v", name, resp)
		}
	}
}

// A comparison of many tools with many tags ends early. It does not store all combinations of a tool and a tag in
// memory.
func TestDiff_EndsEarlyWithManyNamesAndTags(t *testing.T) {
	t.Parallel()
	list := func(prefix string) string {
		var out strings.Builder
		for i := range 20_000 {
			fmt.Fprintf(&out, "%s%d, ", prefix, i)
		}
		return out.String()
	}
	document := "version: 1\nname: a\nserver: s\ndefault: deny\nrules: [{name: r, match: {tool: [" + list("t") + "]}, action: deny}, {name: d, match: {tags: [" + list("g") + "]}, action: deny}]"
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	resp, err := policy.Diff(ctx, nil, noEnv, documentOf(document), documentOf(document))
	if err != nil || !resp.GetTotals().GetEndedEarly() || len(resp.GetTotals().GetFindings()) > 0 {
		t.Errorf("%v, ended early: %t, %v", err, resp.GetTotals().GetEndedEarly(), resp.GetTotals().GetFindings())
	}
}
