package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
)

const accessPolicy = `version: 1
name: a
server: files
default: deny
tools:
  read: {action: allow}
  write: {action: allow, when: args.path == "/a", otherwise: {action: deny, reason: only a}}
  list: {rate_limit: {max: 3, window: 60}}
  pay: {action: require_approval, quorum: 2, approvers: [finance]}
  secret: {action: hide}
rules:
  - {name: prompts, match: {method: "prompts/*"}, action: allow}
`

// accessFixture returns a service with two servers. One server has seven tools, and the definition of one of the tools
// has changed. The other server is configured, but has no tool list.
func accessFixture(t *testing.T) *catalogFixture {
	t.Helper()
	l := newCatalogFixture(t, options{
		paths: []string{folder(t, accessPolicy)}, tokens: append(records(), otherTenantTokens()...),
		servers: map[string]catalog.Settings{"files": {Mode: catalog.FirstUse}, "later": {Mode: catalog.FirstUse}},
	})
	var tools []*policyv1.ToolDefinition
	for _, name := range []string{"read", "write", "list", "pay", "secret", "other", "extra"} {
		tools = append(tools, definition(name, "a tool"))
	}
	l.reportOwnList(tools...)
	changed := definition("read", "a tool that has changed")
	l.reportOwnList(append(tools[1:], changed)...)
	return l
}

// outcomes describes tools, with one tool on each line. Each line contains the tool's outcome and the effects of its
// cases.
func outcomes(tools []*policyv1.ToolAccess) string {
	var out []string
	for _, tool := range tools {
		line := tool.GetName() + ": " + enum.Name(tool.GetOutcome())
		for _, c := range tool.GetCases() {
			line += " " + enum.Name(c.GetEffect())
			if c.GetCondition() != "" {
				line += fmt.Sprintf(" if %s is %t", c.GetCondition(), c.GetHolds())
			}
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

func TestListAccess_ReturnsWhatASubjectMayDo(t *testing.T) {
	t.Parallel()
	l := accessFixture(t)
	client := policyv1.NewPolicyServiceClient(l.Person(t, "viewer"))
	servers, err := client.ListAccess(t.Context(), &policyv1.ListAccessRequest{Subject: ana()})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range servers.GetServers() {
		line := fmt.Sprintf("%s listed=%t could=%t %s:", s.GetServer(), s.GetListed(), s.GetCouldAllow(), strings.Join(s.GetMethods(), ","))
		for _, c := range s.GetCounts() {
			line += fmt.Sprintf(" %s %d", enum.Name(c.GetOutcome()), c.GetTools())
		}
		got = append(got, line)
	}
	if diff := cmp.Diff([]string{
		"files listed=true could=true prompts/list,prompts/get: limited 1 approval 1 depends 1 denied 2 hidden 1 changed 1",
		"later listed=false could=false :",
	}, got); diff != "" {
		t.Errorf("servers (-want +got):\n%s", diff)
	}
	tools, err := client.ListAccess(t.Context(), &policyv1.ListAccessRequest{Subject: ana(), Server: "files", PageSize: 500})
	if err != nil {
		t.Fatal(err)
	}
	const want = `extra: denied deny
list: limited allow
other: denied deny
pay: approval require_approval
read: changed deny
secret: hidden deny
write: depends allow if args.path == "/a" is true deny if args.path == "/a" is false deny`
	if diff := cmp.Diff(want, outcomes(tools.GetTools())); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	if terms := tools.GetTools()[3].GetCases()[0].GetApproval(); terms.GetQuorum() != 2 || terms.GetApprovers()[0] != "finance" {
		t.Errorf("the terms of pay are %v", terms)
	}
	_, err = client.ListAccess(t.Context(), &policyv1.ListAccessRequest{Subject: ana(), Server: "nowhere"})
	rpctest.WantStatus(t, err, codes.NotFound, "SERVER_UNKNOWN")
}

func TestListAccess_PagesContainEachToolAndServerOnce(t *testing.T) {
	t.Parallel()
	l := accessFixture(t)
	client := policyv1.NewPolicyServiceClient(l.Person(t, "operator"))
	for server, want := range map[string]string{"": "files later", "files": "extra list other pay read secret write"} {
		var names []string
		counted := int32(0)
		req := &policyv1.ListAccessRequest{Subject: ana(), Server: server, PageSize: 1}
		for {
			resp, err := client.ListAccess(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range resp.GetServers() {
				if server == "" {
					names = append(names, s.GetServer())
				}
				for _, c := range s.GetCounts() {
					counted += c.GetTools()
				}
			}
			for _, tool := range resp.GetTools() {
				names = append(names, tool.GetName())
			}
			if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
				break
			}
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("the pages of %q contain %s, want %s", server, got, want)
		}
		if counted != 7 {
			t.Errorf("the pages of %q count %d tools, want 7", server, counted)
		}
	}
}

func TestListAccess_WithholdsFromPeopleOfAnotherTenant(t *testing.T) {
	t.Parallel()
	l := accessFixture(t)
	client := policyv1.NewPolicyServiceClient(l.Person(t, "acme-viewer"))
	_, err := client.ListAccess(t.Context(), &policyv1.ListAccessRequest{Subject: ana()})
	rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
	bob := rpctest.Principal("acme", "bob")
	tools, err := client.ListAccess(t.Context(), &policyv1.ListAccessRequest{Subject: bob, Server: "files"})
	if err != nil {
		t.Fatal(err)
	}
	const want = "list: limited allow\npay: approval require_approval\nwrite: depends allow deny deny"
	if diff := cmp.Diff(want, outcomes(tools.GetTools())); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	servers, err := client.ListAccess(t.Context(), &policyv1.ListAccessRequest{Subject: bob})
	if err != nil || len(servers.GetServers()) != 1 {
		t.Errorf("servers %v, %v: want only files", servers, err)
	}
	_, err = client.ListAccess(t.Context(), &policyv1.ListAccessRequest{Subject: bob, Server: "later"})
	rpctest.WantStatus(t, err, codes.NotFound, "SERVER_UNKNOWN")
}

// A server has 4,500 tools, of which a caller sees only the last one. Each page ends after 2,000 tools have been
// evaluated, and the page tokens do not contain the names of tools that the caller does not see.
func TestListAccess_BoundsTheToolsOfAPage(t *testing.T) {
	t.Parallel()
	l := newCatalogFixture(t, options{
		paths:   []string{folder(t, "version: 1\nname: a\nserver: files\ndefault: deny\ntools: {z: {action: allow}}\n")},
		tokens:  append(records(), otherTenantTokens()...),
		servers: map[string]catalog.Settings{"files": {Mode: catalog.FirstUse}},
	})
	tools := []*policyv1.ToolDefinition{definition("z", "a tool")}
	for i := range 4499 {
		tools = append(tools, definition(fmt.Sprintf("hidden-%04d", i), "a tool"))
	}
	l.reportOwnList(tools...)
	for caller, subject := range map[string]*identityv1.Principal{"acme-viewer": rpctest.Principal("acme", "bob"), "viewer": ana()} {
		client := policyv1.NewPolicyServiceClient(l.Person(t, caller))
		for _, server := range []string{"", "files"} {
			pages, counted, listed := 0, int32(0), 0
			req := &policyv1.ListAccessRequest{Subject: subject, Server: server, PageSize: 500}
			for {
				resp, err := client.ListAccess(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				pages++
				listed += len(resp.GetTools())
				for _, c := range resp.GetServers()[0].GetCounts() {
					counted += c.GetTools()
				}
				if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
					break
				}
				if caller == "acme-viewer" && strings.Contains(req.GetPageToken(), "hidden") {
					t.Fatalf("the token %q contains the name of a tool that the caller does not see", req.GetPageToken())
				}
			}
			wantPages, want := 3, int32(1)
			if caller == "viewer" {
				want = 4500
				if server != "" {
					wantPages = 9
				}
			}
			if pages != wantPages || counted != want || server != "" && listed != int(want) {
				t.Errorf("%s, server %q: %d pages with %d tools, %d counted; want %d pages, %d tools", caller, server, pages, listed, counted, wantPages, want)
			}
		}
		_, err := client.ListAccess(t.Context(), &policyv1.ListAccessRequest{Subject: subject, Server: "files", PageToken: "z x"})
		rpctest.WantStatus(t, err, codes.InvalidArgument, "PAGE_TOKEN_INVALID")
	}
}
