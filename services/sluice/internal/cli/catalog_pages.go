package cli

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
	"github.com/sluice-mesh/sluice/services/sluice/internal/catalogpages"
)

// maxCatalogPage is the maximum page size that the catalog service permits.
const maxCatalogPage = 1000

func (t *tool) catalogClient() (policyv1.CatalogServiceClient, func(), error) {
	f, err := t.load()
	if err != nil {
		return nil, nil, err
	}
	conn, err := t.dial(f, authv1.Role_ROLE_POLICY)
	if err != nil {
		return nil, nil, err
	}
	return policyv1.NewCatalogServiceClient(conn), func() { _ = conn.Close() }, nil
}

func (t *tool) withCatalog(do func(ctx context.Context, client policyv1.CatalogServiceClient, given []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, given []string) error {
		client, done, err := t.catalogClient()
		if err != nil {
			return err
		}
		defer done()
		return do(c.Context(), client, given)
	}
}

func (t *tool) catalogServers() *cobra.Command {
	return &cobra.Command{
		Use: "servers", Short: "List servers with the numbers of their tools and pending definitions", Args: args(cobra.NoArgs),
		RunE: t.withCatalog(func(ctx context.Context, client policyv1.CatalogServiceClient, _ []string) error {
			servers, err := t.allServers(ctx, client)
			if err != nil {
				return err
			}
			faults, err := t.listFaults(ctx)
			if err != nil {
				return err
			}
			servers = withUnlisted(servers, faults)
			if t.json() {
				lines := make(map[string][]string)
				for name, found := range faults {
					lines[name] = faultLines(found)
				}
				return catalogpages.JSON(t.out, catalogpages.Catalogue{Servers: servers, ListFaults: lines, Made: time.Now()})
			}
			rows := make([][]string, len(servers))
			for i, s := range servers {
				state := "-"
				if s.GetQuarantined() {
					state = "stopped: " + s.GetQuarantineReason()
				}
				for i, line := range faultLines(faults[s.GetName()]) {
					if i == 0 && state == "-" {
						state = line
						continue
					}
					state += "; " + line
				}
				rows[i] = []string{s.GetName(), strconv.Itoa(int(s.GetTools())), strconv.Itoa(int(s.GetWaiting())), enum.NameOrEmpty(s.GetPin()), yesNo(s.GetTrusted()), formatTime(s.GetListed()), state}
			}
			return t.table([]string{"SERVER", "TOOLS", "WAITING", "PIN", "TRUSTED", "LISTED", "STATE"}, rows)
		}),
	}
}

// listFaults returns the reasons why parts of a server's lists are hidden from clients, by server. It returns nil if
// the gateway does not respond.
func (t *tool) listFaults(ctx context.Context) (map[string][]listFault, error) {
	f, err := t.load()
	if err != nil {
		return nil, err
	}
	requestCtx, cancel := requestContext(ctx)
	defer cancel()
	status, err := t.gatewayStatus(requestCtx, f)
	if err != nil {
		return nil, nil //nolint:nilnil // the catalog service works without the gateway
	}
	out := make(map[string][]listFault)
	for _, s := range status.GetServers() {
		if faults := faultsOf(s); len(faults) > 0 {
			out[s.GetName()] = faults
		}
	}
	return out, nil
}

// withUnlisted adds the servers that have faults but no entry in the catalog. A server has no entry if none of its
// lists could be read.
func withUnlisted(servers []*policyv1.CatalogServer, faults map[string][]listFault) []*policyv1.CatalogServer {
	for name := range faults {
		if !slices.ContainsFunc(servers, func(s *policyv1.CatalogServer) bool { return s.GetName() == name }) {
			servers = append(servers, &policyv1.CatalogServer{Name: name})
		}
	}
	slices.SortFunc(servers, func(a, b *policyv1.CatalogServer) int { return strings.Compare(a.GetName(), b.GetName()) })
	return servers
}

func (t *tool) allServers(ctx context.Context, client policyv1.CatalogServiceClient) ([]*policyv1.CatalogServer, error) {
	var all []*policyv1.CatalogServer
	for token := ""; ; {
		requestCtx, cancel := requestContext(ctx)
		resp, err := client.ListServers(requestCtx, &policyv1.ListServersRequest{PageSize: maxCatalogPage, PageToken: token})
		cancel()
		if err != nil {
			return nil, t.explainError(err)
		}
		all = append(all, resp.GetServers()...)
		if token = resp.GetNextPageToken(); token == "" || len(resp.GetServers()) == 0 {
			return all, nil
		}
	}
}

type catalogFlags struct {
	categories, risks []string
	pending           bool
	text              string
}

func (f *catalogFlags) request(server string) (*policyv1.ListToolsRequest, error) {
	req := &policyv1.ListToolsRequest{Server: server, Waiting: f.pending, Text: f.text, PageSize: maxCatalogPage}
	for _, name := range f.categories {
		category, err := valueOf("category", "CATEGORY_", name, mcpv1.Category_value)
		if err != nil {
			return nil, err
		}
		req.Categories = append(req.Categories, mcpv1.Category(category))
	}
	for _, name := range f.risks {
		risk, err := valueOf("risk", "RISK_", name, policyv1.Risk_value)
		if err != nil {
			return nil, err
		}
		req.Risks = append(req.Risks, policyv1.Risk(risk))
	}
	return req, nil
}

var (
	categoryNames = []string{"read", "write", "execute", "destructive", "financial"}
	riskNames     = []string{"low", "medium", "high", "critical"}
)

// valueOf returns the number of the enumeration value with the given name. The parameter flag is category or risk.
func valueOf(flag, prefix, name string, values map[string]int32) (int32, error) {
	if n := values[prefix+strings.ToUpper(name)]; n > 0 {
		return n, nil
	}
	allowed := categoryNames
	if flag == "risk" {
		allowed = riskNames
	}
	return 0, usageError{fmt.Errorf("--%s must be one of %s, is %q", flag, strings.Join(allowed, ", "), name)}
}

func (t *tool) catalogList() *cobra.Command {
	f := new(catalogFlags)
	c := &cobra.Command{
		Use: "list [SERVER]", Short: "List tools with their category, risk and state", Args: args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: t.completeServer,
		RunE: t.withCatalog(func(ctx context.Context, client policyv1.CatalogServiceClient, given []string) error {
			req, err := f.request(firstArg(given))
			if err != nil {
				return err
			}
			tools, err := t.allTools(ctx, client, req)
			if err != nil {
				return err
			}
			if t.json() {
				return t.printCatalog(ctx, client, tools)
			}
			rows := make([][]string, len(tools))
			for i, one := range tools {
				class := one.GetClassification()
				rows[i] = []string{one.GetServer(), one.GetName(), enum.NameOrEmpty(class.GetCategory()), enum.NameOrEmpty(class.GetRisk()), toolState(one), one.GetDescription()}
			}
			return t.table([]string{"SERVER", "TOOL", "CATEGORY", "RISK", "STATE", "DESCRIPTION"}, clipLast(rows))
		}),
	}
	c.Flags().StringSliceVar(&f.categories, "category", nil, "only these categories: "+strings.Join(categoryNames, ", "))
	c.Flags().StringSliceVar(&f.risks, "risk", nil, "only these risks: "+strings.Join(riskNames, ", "))
	c.Flags().BoolVar(&f.pending, "waiting", false, "only tools with a pending definition")
	c.Flags().StringVar(&f.text, "text", "", "only tools with this text in their name or description")
	_ = c.RegisterFlagCompletionFunc("category", cobra.FixedCompletions(categoryNames, cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("risk", cobra.FixedCompletions(riskNames, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func firstArg(given []string) string {
	if len(given) == 0 {
		return ""
	}
	return given[0]
}

// clipLast truncates the strings in the last column. They come from servers and may be long.
func clipLast(rows [][]string) [][]string {
	const maxLength = 60
	for _, row := range rows {
		last := []rune(strings.Join(strings.Fields(row[len(row)-1]), " "))
		if len(last) > maxLength {
			last = append(last[:maxLength-1], '…')
		}
		row[len(row)-1] = string(last)
	}
	return rows
}

func (t *tool) allTools(ctx context.Context, client policyv1.CatalogServiceClient, req *policyv1.ListToolsRequest) ([]*policyv1.CatalogTool, error) {
	var all []*policyv1.CatalogTool
	for {
		requestCtx, cancel := requestContext(ctx)
		resp, err := client.ListTools(requestCtx, req)
		cancel()
		if err != nil {
			return nil, t.explainError(err)
		}
		all = append(all, resp.GetTools()...)
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" || len(resp.GetTools()) == 0 {
			return all, nil
		}
	}
}

func (t *tool) printCatalog(ctx context.Context, client policyv1.CatalogServiceClient, tools []*policyv1.CatalogTool) error {
	servers, err := t.allServers(ctx, client)
	if err != nil {
		return err
	}
	servers = slices.DeleteFunc(servers, func(s *policyv1.CatalogServer) bool {
		return !slices.ContainsFunc(tools, func(one *policyv1.CatalogTool) bool { return one.GetServer() == s.GetName() })
	})
	return catalogpages.JSON(t.out, catalogpages.Catalogue{Servers: servers, Tools: tools, Made: time.Now()})
}

// toolState returns the content of the column STATE, which shows whether the catalog allows calls to the tool.
func toolState(tool *policyv1.CatalogTool) string {
	switch {
	case tool.GetServerQuarantined():
		return "server stopped"
	case tool.GetQuarantined():
		return "stopped"
	case tool.GetStopped():
		return "changed, waits"
	case tool.GetPin() == policyv1.PinState_PIN_STATE_QUARANTINED:
		return "waits"
	case !tool.GetListedNow():
		return "not listed"
	default:
		return enum.NameOrEmpty(tool.GetPin())
	}
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func formatTime(at *timestamppb.Timestamp) string {
	if at == nil {
		return "-"
	}
	return at.AsTime().Local().Format(time.DateTime)
}

func (t *tool) catalogShow() *cobra.Command {
	return &cobra.Command{
		Use: "show SERVER TOOL", Short: "Print a tool's page: its class with the evidence, parameters, dangers, and a recommended rule",
		Args: args(cobra.ExactArgs(2)), ValidArgsFunction: t.completeCatalog(false),
		RunE: t.withCatalog(func(ctx context.Context, client policyv1.CatalogServiceClient, given []string) error {
			page, err := t.catalogPage(ctx, client, given[0], given[1])
			if err != nil {
				return err
			}
			if t.json() {
				return t.printCatalog(ctx, client, []*policyv1.CatalogTool{page})
			}
			printPage(t.out, page)
			return nil
		}),
	}
}

func (t *tool) catalogPage(ctx context.Context, client policyv1.CatalogServiceClient, server, name string) (*policyv1.CatalogTool, error) {
	ctx, cancel := requestContext(ctx)
	defer cancel()
	resp, err := client.GetTool(ctx, &policyv1.GetToolRequest{Server: server, Tool: name})
	if err != nil {
		return nil, t.explainError(err)
	}
	return resp.GetTool(), nil
}

// completeCatalog completes the name of a server, and then the name of one of its tools. If waits is true, it completes
// only tools with a pending definition.
func (t *tool) completeCatalog(waits bool) cobra.CompletionFunc {
	return func(c *cobra.Command, given []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(given) == 0 {
			return t.completeServer(c, given, typed)
		}
		if len(given) > 1 || t.checkFlags(c, nil) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		client, done, err := t.catalogClient()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer done()
		tools, err := t.allTools(c.Context(), client, &policyv1.ListToolsRequest{Server: given[0], Waiting: waits, PageSize: maxCatalogPage})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, one := range tools {
			names = append(names, safetext.Line(one.GetName()))
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// shortDigest returns the first 16 hexadecimal digits of a digest, which are enough to distinguish the definitions of a
// tool.
func shortDigest(digest []byte) string {
	text := hex.EncodeToString(digest)
	return text[:min(len(text), 16)]
}

// printPage prints a tool's page in readable form. It escapes strings, because they may come from an untrusted server.
func printPage(w io.Writer, page *policyv1.CatalogTool) {
	line := func(format string, args ...any) { _ = oneLine(w, format, args...) }
	class := page.GetClassification()
	line("%s on %s", page.GetName(), page.GetServer())
	unsure := ""
	if class.GetConfidence() < 0.5 {
		unsure = ", not sure"
	}
	line("  %s, %s risk (sure: %.2f%s)", enum.Name(class.GetCategory()), enum.Name(class.GetRisk()), class.GetConfidence(), unsure)
	line("  %s", toolState(page))
	for _, text := range []string{page.GetTitle(), page.GetDescription()} {
		for part := range strings.Lines(text) {
			line("  | %s", strings.TrimRight(part, "\r\n"))
		}
	}
	if o := page.GetOverride(); o != nil {
		line("  set by %s on %s: %s (the catalog's own result: %s, %s)", o.GetAuthor(), formatTime(o.GetTime()), o.GetReason(),
			enum.Name(page.GetDerived().GetCategory()), enum.Name(page.GetDerived().GetRisk()))
	}
	if page.GetQuarantined() {
		line("  stopped by %s: %s", page.GetQuarantinedBy(), page.GetQuarantineReason())
	}
	if len(class.GetTags()) > 0 {
		line("  tags: %s", strings.Join(class.GetTags(), ", "))
	}
	if class.GetDependsOnArgument() != "" {
		line("  what it does depends on the argument %s", class.GetDependsOnArgument())
	}
	for _, other := range page.GetLookAlikes() {
		line("  its name looks like %s", other)
	}
	line("")
	line("Why it needs a policy")
	line("  %s", page.GetAdvice().GetWhy())
	line("From its definition")
	for _, e := range class.GetEvidence() {
		line("  %q at %s: %s", e.GetQuote(), e.GetPath(), e.GetMeaning())
	}
	line("Parameters: %d, %d of them required", page.GetParameterCount(), page.GetRequiredParameterCount())
	for _, p := range page.GetParameters() {
		need := ""
		if p.GetRequired() {
			need = ", required"
		}
		line("  %s (%s%s) %s", p.GetName(), strings.Join(p.GetTypes(), ", "), need, p.GetDescription())
	}
	line("What may go wrong")
	for _, a := range page.GetAdvice().GetAttacks() {
		line("  %s %s: %s", a.GetId(), a.GetName(), a.GetDescription())
	}
	line("The rule")
	for part := range strings.Lines(page.GetAdvice().GetRecommendedRule()) {
		line("  %s", strings.TrimRight(part, "\n"))
	}
	printDefinitions(line, page.GetHistory())
}

func printDefinitions(line func(format string, args ...any), seen []*policyv1.SeenDefinition) {
	line("Definitions that the server has listed, the newest first")
	for _, d := range seen {
		who := d.GetSettledBy()
		if who != "" {
			who = " by " + who
		}
		line("  %s  %s%s, first seen %s%s: %s", shortDigest(d.GetDefinitionDigest()), pinName(d.GetPin()), who, formatTime(d.GetFirstSeen()), listedToSuffix(d), d.GetReason())
	}
}

func pinName(pin policyv1.PinState) string {
	if pin == policyv1.PinState_PIN_STATE_QUARANTINED {
		return "waits"
	}
	return enum.Name(pin)
}

func listedToSuffix(d *policyv1.SeenDefinition) string {
	if d.GetSeenBy() == "" {
		return ""
	}
	return " when it was listed to " + d.GetSeenBy()
}
