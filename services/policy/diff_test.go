package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/policy"
)

// flipLines describes flips, one in each line.
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

func documentOf(text string) []*policyv1.Document {
	return []*policyv1.Document{{Path: "a.yaml", Text: text}}
}

// The active documents are compared with a draft: the draft allows a tool that was hidden and one that was denied,
// removes a condition, and denies a tool. Two recorded calls are compared, too.
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
	resp, err := client.DiffRevisions(t.Context(), &policyv1.DiffRevisionsRequest{Documents: documentOf(draft), Recorded: []*policyv1.RecordedCall{recorded}})
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
	if !strings.HasPrefix(got, "opens") || resp.GetOpened() != 2 || resp.GetTotal() != int64(len(resp.GetFlips())) || resp.GetEndedEarly() || resp.GetUncertain() != 0 {
		t.Errorf("opened %d, total %d, ended early %t, uncertain %d:\n%s", resp.GetOpened(), resp.GetTotal(), resp.GetEndedEarly(), resp.GetUncertain(), got)
	}
	same, err := client.DiffRevisions(t.Context(), &policyv1.DiffRevisionsRequest{Documents: documentOf(accessPolicy), OldDocuments: documentOf(accessPolicy)})
	if err != nil || same.GetTotal() != 0 || same.GetCompared() == 0 {
		t.Errorf("the same documents differ: %v, %v", same, err)
	}
}

func TestDiffRevisions_Refuses(t *testing.T) {
	t.Parallel()
	l := accessFixture(t)
	other := policyv1.NewPolicyServiceClient(l.Person(t, "acme-viewer"))
	_, err := other.DiffRevisions(t.Context(), &policyv1.DiffRevisionsRequest{Documents: documentOf(accessPolicy)})
	rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
	client := policyv1.NewPolicyServiceClient(l.Person(t, "operator"))
	_, err = client.DiffRevisions(t.Context(), &policyv1.DiffRevisionsRequest{OldRevision: strings.Repeat("0", 64), Documents: documentOf(accessPolicy)})
	rpctest.WantStatus(t, err, codes.NotFound, "REVISION_UNKNOWN")
	resp, err := client.DiffRevisions(t.Context(), &policyv1.DiffRevisionsRequest{Documents: documentOf("version: 2\n")})
	if err != nil || len(resp.GetFindings()) == 0 || resp.GetCompared() != 0 {
		t.Errorf("a document that does not load: %v, %v", resp, err)
	}
}

// Without a catalog, examples stand for the tools, callers and servers that a change may concern.
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
		"a longer list of approvers": {"server: s\ntools: {x: {action: require_approval, quorum: 2}}", "server: s\ntools: {x: {action: require_approval}}", "terms s/x require_approval -> require_approval subjects=1 any=true calls=0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resp := policy.Diff(t.Context(), nil, noEnv, documentOf(head+tt.before), documentOf(head+tt.after))
			if len(resp.GetFindings()) > 0 {
				t.Fatal(resp.GetFindings())
			}
			if got := flipLines(resp.GetFlips()); !strings.Contains(got, tt.want) {
				t.Errorf("%q is missing in\n%s", tt.want, got)
			}
			back := policy.Diff(t.Context(), nil, noEnv, documentOf(head+tt.before), documentOf(head+tt.before))
			if diff := cmp.Diff("", flipLines(back.GetFlips())); diff != "" {
				t.Errorf("the same documents differ (-want +got):\n%s", diff)
			}
		})
	}
}
