package policy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
)

const byClass = `version: 1
name: classes
default: deny
rules:
  - {name: reads, match: {category: read}, action: allow}
  - {name: loss, match: {category: destructive}, action: require_approval}
  - {name: prompts, match: {method: "prompts/*"}, action: allow}
`

type catalogFixture struct {
	t testing.TB
	*rpctest.Server

	gateway, operator policyv1.CatalogServiceClient
	policy            policyv1.PolicyServiceClient
}

// pinned returns options that pin the tool definitions of the server `files`.
func pinned(t *testing.T) options {
	t.Helper()
	return options{paths: []string{folder(t, byClass)}, servers: map[string]catalog.Settings{"files": {Mode: catalog.FirstUse}}, data: t.TempDir()}
}

func newCatalogFixture(t *testing.T, opts options) *catalogFixture {
	t.Helper()
	s := serve(t, opts)
	return &catalogFixture{
		t: t, Server: s, gateway: policyv1.NewCatalogServiceClient(s.Gateway()), operator: policyv1.NewCatalogServiceClient(s.Person(t, "operator")),
		policy: policyv1.NewPolicyServiceClient(s.Gateway()),
	}
}

func asGatewayItself(ctx context.Context) context.Context {
	return authn.OnBehalfOf(ctx, &identityv1.Principal{Tenant: "default", Subject: "system:catalogue", Role: authv1.TokenRole_TOKEN_ROLE_AGENT})
}

func asAna(ctx context.Context) context.Context {
	return authn.OnBehalfOf(ctx, &identityv1.Principal{Tenant: "default", Subject: "ana", Role: authv1.TokenRole_TOKEN_ROLE_AGENT})
}

// definition returns a tool whose definition has only a name and a description.
func definition(name, description string) *policyv1.ToolDefinition {
	text, _ := json.Marshal(map[string]any{"name": name, "description": description, "inputSchema": map[string]any{"type": "object"}})
	return &policyv1.ToolDefinition{Name: name, DefinitionJson: string(text)}
}

func (l *catalogFixture) report(ctx context.Context, head *policyv1.ReportHead, tools ...*policyv1.ToolDefinition) (*policyv1.ReportToolsResponse, error) {
	l.t.Helper()
	stream, err := l.gateway.ReportTools(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	if head != nil {
		_ = stream.Send(&policyv1.ReportToolsRequest{Part: &policyv1.ReportToolsRequest_Head{Head: head}})
	}
	for _, tool := range tools {
		_ = stream.Send(&policyv1.ReportToolsRequest{Part: &policyv1.ReportToolsRequest_Tool{Tool: tool}}) // the response contains the error
	}
	return stream.CloseAndRecv()
}

func (l *catalogFixture) reportOwnList(tools ...*policyv1.ToolDefinition) *policyv1.ReportToolsResponse {
	l.t.Helper()
	resp, err := l.report(asGatewayItself(l.t.Context()), &policyv1.ReportHead{Server: "files", ProtocolVersion: "2025-11-25", Whole: true}, tools...)
	if err != nil {
		l.t.Fatal(err)
	}
	return resp
}

// decide returns the decision on a call that ana makes to a tool with this definition.
func (l *catalogFixture) decide(tool *policyv1.ToolDefinition) *policyv1.Decision {
	l.t.Helper()
	return l.decideCall(tool).GetDecision()
}

func (l *catalogFixture) decideCall(tool *policyv1.ToolDefinition) *policyv1.DecideCallResponse {
	l.t.Helper()
	listed, err := catalog.ParseListed(tool.GetName(), tool.GetDefinitionJson())
	if err != nil {
		l.t.Fatal(err)
	}
	resp, err := l.policy.DecideCall(asAna(l.t.Context()), &policyv1.DecideCallRequest{Call: &policyv1.Call{Server: "files", Name: tool.GetName(), DefinitionDigest: listed.Digest[:]}})
	if err != nil {
		l.t.Fatal(err)
	}
	return resp
}

func (l *catalogFixture) wantDecision(effect policyv1.Effect, code commonv1.Code, tool *policyv1.ToolDefinition) {
	l.t.Helper()
	if d := l.decide(tool); d.GetEffect() != effect || d.GetCode() != code {
		l.t.Errorf("%s: %v", tool.GetDefinitionJson(), d)
	}
}

func (l *catalogFixture) visible(tool *policyv1.ToolDefinition) bool {
	l.t.Helper()
	listed, err := catalog.ParseListed(tool.GetName(), tool.GetDefinitionJson())
	if err != nil {
		l.t.Fatal(err)
	}
	resp, err := l.policy.FilterTools(asAna(l.t.Context()), &policyv1.FilterToolsRequest{Server: "files", Tools: []*policyv1.ToolRef{{Name: tool.GetName(), DefinitionDigest: listed.Digest[:]}}})
	if err != nil {
		l.t.Fatal(err)
	}
	return resp.GetTools()[0].GetVisible()
}

const (
	allow           = policyv1.Effect_EFFECT_ALLOW
	requireApproval = policyv1.Effect_EFFECT_REQUIRE_APPROVAL
	deny            = policyv1.Effect_EFFECT_DENY
	noCode          = commonv1.Code_CODE_UNSPECIFIED
)

// Case T1. Reported definitions are pinned, and calls are evaluated with the pinned definitions, before and after a
// restart. While a changed definition waits for an operator to accept it, calls to the tool are denied.
func TestCatalog_ChangedDefinitionWaitsForAnOperator(t *testing.T) {
	t.Parallel()
	opts := pinned(t)
	get, rm := definition("get_file", "Gets a file."), definition("delete_file", "Deletes a file permanently.")
	func() { // the first service is closed at the end of this function
		t.Run("first", func(t *testing.T) {
			l := newCatalogFixture(t, opts)
			l.wantDecision(deny, commonv1.Code_CODE_TOOL_UNKNOWN, get)
			resp := l.reportOwnList(get, rm)
			if len(resp.GetTools()) != 2 || resp.GetTools()[0].GetPin() != policyv1.PinState_PIN_STATE_ACCEPTED || resp.GetActivation() == "" {
				t.Fatalf("the response to the report is %v", resp)
			}
			l.wantDecision(allow, noCode, get)
			l.wantDecision(requireApproval, commonv1.Code_CODE_APPROVAL_REQUIRED, rm)
			d := l.decide(rm)
			if c := d.GetToolClass(); c.GetCategory() != mcpv1.Category_CATEGORY_DESTRUCTIVE || c.GetRisk() != policyv1.Risk_RISK_CRITICAL || c.GetBelieved() {
				t.Errorf("the decision's class is %v", c)
			}
		})
	}()
	l := newCatalogFixture(t, opts)
	l.wantDecision(allow, noCode, get)
	changed := definition("get_file", "Gets a file, and tells us of it.")
	before := l.revision()
	if pin := l.reportOwnList(changed, rm).GetTools()[0].GetPin(); pin != policyv1.PinState_PIN_STATE_QUARANTINED {
		t.Errorf("a changed definition is %v", pin)
	}
	l.wantDecision(deny, commonv1.Code_CODE_TOOL_CHANGED, changed)
	l.wantDecision(deny, commonv1.Code_CODE_TOOL_CHANGED, get)
	l.wantDecision(requireApproval, commonv1.Code_CODE_APPROVAL_REQUIRED, rm)
	if l.visible(changed) || l.visible(get) || !l.visible(rm) {
		t.Error("a definition that was not accepted is listed")
	}
	if l.revision() == before {
		t.Error("the revision did not change although a tool was stopped")
	}
	page := l.page("get_file")
	if !page.GetStopped() || len(page.GetWaiting()) != 1 || len(page.GetHistory()) != 2 || page.GetHistory()[0].GetReason() != "it differs from the definition that was accepted" {
		t.Errorf("the page: %v", page)
	}
	resp, err := l.operator.AcceptPin(t.Context(), &policyv1.AcceptPinRequest{Server: "files", Tool: "get_file", DefinitionDigest: page.GetWaiting()[0], Reason: "read it"})
	if err != nil || resp.GetAccepted() != 1 {
		t.Fatalf("accepted: %v, %v", resp, err)
	}
	l.wantDecision(allow, noCode, changed)
	l.wantDecision(allow, noCode, get)
	if seen := l.page("get_file").GetHistory()[0]; seen.GetSettledBy() != "operator" || seen.GetReason() != "read it" {
		t.Errorf("the history: %v", seen)
	}
}

func (l *catalogFixture) revision() string {
	l.t.Helper()
	resp, err := policyv1.NewPolicyServiceClient(l.Person(l.t, "operator")).GetRevision(l.t.Context(), new(policyv1.GetRevisionRequest))
	if err != nil {
		l.t.Fatal(err)
	}
	return resp.GetRevision().GetId()
}

func (l *catalogFixture) page(tool string) *policyv1.CatalogTool {
	l.t.Helper()
	resp, err := l.operator.GetTool(l.t.Context(), &policyv1.GetToolRequest{Server: "files", Tool: tool})
	if err != nil {
		l.t.Fatal(err)
	}
	return resp.GetTool()
}

// Case T1. If a server lists a tool with a different definition to one caller, only calls with that definition are
// denied.
func TestCatalog_DefinitionListedToACallerIsRequiredForItsCalls(t *testing.T) {
	t.Parallel()
	l := newCatalogFixture(t, pinned(t))
	get := definition("get_file", "Gets a file.")
	l.reportOwnList(get)
	before := l.revision()
	head := &policyv1.ReportHead{Server: "files", ProtocolVersion: "2025-11-25"}
	if _, err := l.report(asAna(t.Context()), head, definition("more", "Gets more.")); err != nil {
		t.Fatal(err)
	}
	if l.revision() != before {
		t.Error("a tool without an accepted definition changes the revision")
	}
	l.wantDecision(allow, noCode, get)
	other := definition("get_file", "Gets a file for ana alone.")
	if _, err := l.report(asAna(t.Context()), head, other); err != nil {
		t.Fatal(err)
	}
	l.wantDecision(allow, noCode, get) // other sessions were listed this definition
	l.wantDecision(deny, commonv1.Code_CODE_TOOL_CHANGED, other)
	page := l.page("get_file")
	if page.GetHistory()[0].GetSeenBy() != "default/ana" {
		t.Errorf("the page: %v", page)
	}
	if _, err := l.operator.RefusePin(t.Context(), &policyv1.RefusePinRequest{Server: "files", Tool: "get_file", DefinitionDigest: page.GetWaiting()[0]}); err != nil {
		t.Fatal(err)
	}
	l.wantDecision(allow, noCode, get)
	l.wantDecision(deny, commonv1.Code_CODE_TOOL_CHANGED, other)
	_, err := l.report(asAna(t.Context()), &policyv1.ReportHead{Server: "files", ProtocolVersion: "2025-11-25", Whole: true}, get)
	rpctest.WantStatus(t, err, codes.InvalidArgument, "LIST_INVALID")
}

// Case T1. If a session's list contains two tools with the same name, the list is refused. Other sessions can still
// call the tool.
func TestReportTools_DuplicateNameInASessionsListStopsNoServer(t *testing.T) {
	t.Parallel()
	l := newCatalogFixture(t, pinned(t))
	get := definition("get_file", "Gets a file.")
	l.reportOwnList(get)
	_, err := l.report(asAna(t.Context()), &policyv1.ReportHead{Server: "files", ProtocolVersion: "2025-11-25"}, get, definition("get_file", "Another."))
	rpctest.WantStatus(t, err, codes.InvalidArgument, "TOOL_DUPLICATE")
	l.wantDecision(allow, noCode, get)
}

// Case T1. If the complete list that a gateway requested for itself contains two tools with the same name, the server
// is quarantined.
func TestReportTools_DuplicateNameInAWholeListStopsTheServer(t *testing.T) {
	t.Parallel()
	l := newCatalogFixture(t, pinned(t))
	get := definition("get_file", "Gets a file.")
	l.reportOwnList(get)
	_, err := l.report(asGatewayItself(t.Context()), &policyv1.ReportHead{Server: "files", ProtocolVersion: "2025-11-25", Whole: true}, get, definition("get_file", "Another."))
	rpctest.WantStatus(t, err, codes.InvalidArgument, "TOOL_DUPLICATE")
	l.wantDecision(deny, commonv1.Code_CODE_QUARANTINED, get)
	prompt := &policyv1.DecideCallRequest{Call: &policyv1.Call{Method: "prompts/get", Server: "files", Name: "get_file"}}
	if d, err := l.policy.DecideCall(asAna(t.Context()), prompt); err != nil || d.GetDecision().GetCode() != commonv1.Code_CODE_QUARANTINED {
		t.Errorf("a prompt of a server in quarantine: %v, %v", d, err)
	}
	resp, err := l.operator.GetServer(t.Context(), &policyv1.GetServerRequest{Server: "files"})
	if err != nil || !resp.GetServer().GetQuarantined() || resp.GetServer().GetQuarantinedBy() != "" || !strings.Contains(resp.GetServer().GetQuarantineReason(), `"get_file" twice`) {
		t.Errorf("the server: %v, %v", resp, err)
	}
	if _, err := l.operator.SetQuarantine(t.Context(), &policyv1.SetQuarantineRequest{Server: "files", Reason: "mended"}); err != nil {
		t.Fatal(err)
	}
	l.wantDecision(allow, noCode, get)
	if _, err := l.operator.SetQuarantine(t.Context(), &policyv1.SetQuarantineRequest{Server: "files", Tool: "get_file", Quarantined: true, Reason: "it lies"}); err != nil {
		t.Fatal(err)
	}
	l.wantDecision(deny, commonv1.Code_CODE_QUARANTINED, get)
	if d, err := l.policy.DecideCall(asAna(t.Context()), prompt); err != nil || d.GetDecision().GetEffect() != allow {
		t.Errorf("a prompt with the name of a tool in quarantine: %v, %v", d, err)
	}
	if page := l.page("get_file"); !page.GetQuarantined() || page.GetQuarantinedBy() != "operator" || page.GetQuarantineReason() != "it lies" {
		t.Errorf("the page: %v", page)
	}
}

func TestOverrideTool(t *testing.T) {
	t.Parallel()
	l := newCatalogFixture(t, pinned(t))
	get := definition("get_file", "Gets a file.")
	l.reportOwnList(get)
	page := l.page("get_file")
	override := &policyv1.ToolOverride{Category: mcpv1.Category_CATEGORY_DESTRUCTIVE, Risk: policyv1.Risk_RISK_CRITICAL, Tags: []string{"mine"}, Reason: "it removes what it gets"}
	req := &policyv1.OverrideToolRequest{Server: "files", Tool: "get_file", Override: override, Etag: "other"}
	_, err := l.operator.OverrideTool(t.Context(), req)
	rpctest.WantStatus(t, err, codes.Aborted, "TOOL_CHANGED")
	req.Etag = page.GetEtag()
	resp, err := l.operator.OverrideTool(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	got := resp.GetTool()
	if got.GetClassification().GetCategory() != mcpv1.Category_CATEGORY_DESTRUCTIVE || got.GetDerived().GetCategory() != mcpv1.Category_CATEGORY_READ ||
		got.GetOverride().GetAuthor() != "operator" || got.GetOverride().GetTime() == nil || len(got.GetClassification().GetEvidence()) == 0 {
		t.Errorf("the page: %v", got)
	}
	l.wantDecision(requireApproval, commonv1.Code_CODE_APPROVAL_REQUIRED, get)
	if _, err := l.operator.OverrideTool(t.Context(), req); err != nil {
		t.Errorf("the same override: %v", err)
	}
	if _, err := l.operator.OverrideTool(t.Context(), &policyv1.OverrideToolRequest{Server: "files", Tool: "get_file", Etag: got.GetEtag()}); err != nil {
		t.Fatal(err)
	}
	l.wantDecision(allow, noCode, get)
}

func TestCatalog_ListsServersAndTools(t *testing.T) {
	t.Parallel()
	l := newCatalogFixture(t, pinned(t))
	var tools []*policyv1.ToolDefinition
	for i := range 25 {
		tools = append(tools, definition(fmt.Sprintf("get_%02d", i), "Gets a thing."))
	}
	l.reportOwnList(append(tools, definition("delete_all", "Deletes all Äpfel."))...)
	var names []string
	token := ""
	for {
		resp, err := l.operator.ListTools(t.Context(), &policyv1.ListToolsRequest{PageSize: 10, PageToken: token})
		if err != nil || resp.GetTotal() != 26 {
			t.Fatalf("%d in all: %v", resp.GetTotal(), err)
		}
		for _, tool := range resp.GetTools() {
			names = append(names, tool.GetName())
		}
		if token = resp.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(names) != 26 || names[0] != "delete_all" || names[25] != "get_24" {
		t.Errorf("the pages have %q", names)
	}
	for want, req := range map[int32]*policyv1.ListToolsRequest{
		1:  {Text: "äPFEL"},
		25: {Categories: []mcpv1.Category{mcpv1.Category_CATEGORY_READ}, Server: "files"},
		0:  {Waiting: true},
		26: {Pins: []policyv1.PinState{policyv1.PinState_PIN_STATE_ACCEPTED}},
	} {
		resp, err := l.operator.ListTools(t.Context(), req)
		if err != nil || resp.GetTotal() != want {
			t.Errorf("%v: %d, %v", req, resp.GetTotal(), err)
		}
	}
	servers, err := l.operator.ListServers(t.Context(), new(policyv1.ListServersRequest))
	if err != nil || len(servers.GetServers()) != 1 || servers.GetServers()[0].GetTools() != 26 || servers.GetServers()[0].GetPin() != policyv1.PinMode_PIN_MODE_FIRST_USE {
		t.Errorf("servers: %v, %v", servers, err)
	}
	page := l.page("get_00")
	got, err := l.operator.GetDefinition(t.Context(), &policyv1.GetDefinitionRequest{Server: "files", Tool: "get_00", DefinitionDigest: page.GetDefinitionDigest()})
	if err != nil || got.GetDefinitionJson() != tools[0].GetDefinitionJson() || page.GetDefinitionJson() != tools[0].GetDefinitionJson() {
		t.Errorf("the definition: %v, %v", got, err)
	}
	if page.GetAdvice().GetRecommendedRule() == "" || len(page.GetAdvice().GetAttacks()) == 0 {
		t.Errorf("the advice: %v", page.GetAdvice())
	}
}

func TestCatalog_InvalidRequestsAreRefused(t *testing.T) {
	t.Parallel()
	l := newCatalogFixture(t, pinned(t))
	l.reportOwnList(definition("get_file", "Gets a file."))
	head := &policyv1.ReportHead{Server: "files", ProtocolVersion: "2025-11-25"}
	for want, send := range map[string]func() error{
		"LIST_INVALID a": func() error { _, err := l.report(asAna(t.Context()), nil); return err },
		"LIST_INVALID b": func() error { _, err := l.report(asAna(t.Context()), nil, definition("a", "b")); return err },
	} {
		rpctest.WantStatus(t, send(), codes.InvalidArgument, strings.Fields(want)[0])
	}
	other := definition("a", "b")
	other.Name = "c"
	resp, err := l.report(asAna(t.Context()), head, other, &policyv1.ToolDefinition{Name: "n", DefinitionJson: `{"name":"n","x":1` + strings.Repeat("0", 100) + `}`}, definition("get_file", "Gets a file."))
	if err != nil || resp.GetTools()[0].GetDefinitionDigest() != nil || resp.GetTools()[1].GetDefinitionDigest() != nil || resp.GetTools()[2].GetPin() != policyv1.PinState_PIN_STATE_ACCEPTED {
		t.Errorf("definitions that can't be read: %v, %v", resp, err)
	}
	digest := make([]byte, 32)
	for _, err := range []error{
		errorOf(l.operator.GetServer(t.Context(), &policyv1.GetServerRequest{Server: "none"})),
		errorOf(l.operator.GetTool(t.Context(), &policyv1.GetToolRequest{Server: "none", Tool: "x"})),
		errorOf(l.operator.SetQuarantine(t.Context(), &policyv1.SetQuarantineRequest{Server: "none", Reason: "x", Quarantined: true})),
	} {
		rpctest.WantStatus(t, err, codes.NotFound, "SERVER_UNKNOWN")
	}
	rpctest.WantStatus(t, errorOf(l.operator.GetTool(t.Context(), &policyv1.GetToolRequest{Server: "files", Tool: "x"})), codes.NotFound, "TOOL_UNKNOWN")
	rpctest.WantStatus(t, errorOf(l.operator.AcceptPin(t.Context(), &policyv1.AcceptPinRequest{Server: "files", Tool: "get_file", DefinitionDigest: digest})), codes.NotFound, "DEFINITION_UNKNOWN")
	stranger := policyv1.NewCatalogServiceClient(l.Person(t, "viewer"))
	rpctest.WantStatus(t, errorOf(stranger.AcceptPin(t.Context(), &policyv1.AcceptPinRequest{Server: "files", DefinitionDigest: digest})), codes.PermissionDenied, "CALLER_REFUSED")
}

func errorOf[T any](_ T, err error) error { return err }

// Case X1. Slow reports from one caller do not delay other callers. Slow reports from many callers do not delay lists
// that gateways requested for themselves.
func TestReportTools_SlowCallersDoNotDelayGateways(t *testing.T) {
	t.Parallel()
	l := newCatalogFixture(t, pinned(t))
	head := &policyv1.ReportHead{Server: "files", ProtocolVersion: "2025-11-25"}
	as := func(ctx context.Context, index int) context.Context {
		return authn.OnBehalfOf(ctx, &identityv1.Principal{Tenant: "default", Subject: fmt.Sprint("slow", index), Role: authv1.TokenRole_TOKEN_ROLE_AGENT})
	}
	slow := func(index int) (end func()) {
		ctx, cancel := context.WithCancel(as(t.Context(), index))
		for range 5 {
			stream, err := l.gateway.ReportTools(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(&policyv1.ReportToolsRequest{Part: &policyv1.ReportToolsRequest_Head{Head: head}}); err != nil {
				t.Fatal(err)
			}
		}
		return cancel
	}
	read := func(index int) bool {
		short, giveUp := context.WithTimeout(as(t.Context(), index), 300*time.Millisecond)
		defer giveUp()
		_, err := l.report(short, head, definition("get_file", "Gets a file."))
		return err == nil
	}
	defer slow(0)()
	eventually.Holds(t, "its reports wait", func() bool { return !read(0) })
	eventually.Holds(t, "the reports of another caller are received", func() bool { return read(1) })
	for index := range 4 {
		defer slow(index)()
	}
	eventually.Holds(t, "all slots are taken", func() bool { return !read(9) })
	l.reportOwnList(definition("get_file", "Gets a file."))
}
