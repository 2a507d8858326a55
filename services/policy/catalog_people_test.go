package policy_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
)

// If each person uses her own account of a server, the catalog does not show the definitions that only her account has.
// Calls with such a definition are refused, and the message says what an operator can do.
func TestCatalog_DefinitionsOfPeoplesAccountsAreNotShown(t *testing.T) {
	t.Parallel()
	opts := pinned(t)
	opts.servers["files"] = catalog.Settings{Mode: catalog.FirstUse, ForEachPerson: true}
	l := newCatalogFixture(t, opts)
	get := definition("get_file", "Gets a file.")
	l.reportOwnList(get)
	before := l.revision()
	other, private := definition("get_file", "Gets a file of ana's workspace."), definition("get_salaries", "Gets salaries.")
	head := &policyv1.ReportHead{Server: "files", ProtocolVersion: "2025-11-25", AccountOfPerson: true}
	resp, err := l.report(asAna(t.Context()), head, get, private)
	if err != nil || len(resp.GetTools()) != 2 || len(resp.GetTools()[1].GetDefinitionDigest()) == 0 {
		t.Fatal(resp, err)
	}
	if _, err := l.report(asAna(t.Context()), head, other); err != nil {
		t.Fatal(err)
	}
	l.wantDecision(allow, noCode, get)
	for _, tool := range []*policyv1.ToolDefinition{other, private} {
		l.wantDecision(deny, commonv1.Code_CODE_TOOL_CHANGED, tool)
		if message := l.decide(tool).GetMessage(); !strings.Contains(message, "sluice connect files --discovery") {
			t.Errorf("the message is %q", message)
		}
	}
	for _, token := range []string{"viewer", "approver", "operator"} {
		reader := policyv1.NewCatalogServiceClient(l.Person(t, token))
		tools, err := reader.ListTools(t.Context(), new(policyv1.ListToolsRequest))
		if err != nil || tools.GetTotal() != 1 || len(tools.GetTools()) != 1 || tools.GetTools()[0].GetName() != "get_file" {
			t.Errorf("%s sees %v, %v", token, tools, err)
		}
		_, err = reader.GetTool(t.Context(), &policyv1.GetToolRequest{Server: "files", Tool: "get_salaries"})
		rpctest.WantStatus(t, err, codes.NotFound, "TOOL_UNKNOWN")
	}
	if page := l.page("get_file"); len(page.GetWaiting()) != 0 || len(page.GetHistory()) != 1 {
		t.Errorf("the page is %v", page)
	}
	if l.revision() != before {
		t.Error("the list of a person changes the revision")
	}
	if l.visible(private) || l.visible(other) || !l.visible(get) {
		t.Error("a tool that can't be called is visible, or another one is not")
	}
}
