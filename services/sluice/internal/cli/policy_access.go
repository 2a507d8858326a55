package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

const (
	// accessPage is the maximum number of servers or tools in one response.
	accessPage = 500
	// maxAccessRows is the maximum number of tools that are printed without --server. If there are more, only a table of
	// the servers is printed.
	maxAccessRows = 60
)

type accessFlags struct {
	server, token          string
	tenant, subject, agent string
	groups                 []string
	issuer, client         string
	scopes                 []string
}

func (t *tool) policyAccess() *cobra.Command {
	var f accessFlags
	c := &cobra.Command{
		Use:   "access [--subject SUBJECT | --token NAME] [--server SERVER]",
		Short: "Show what one caller may do, on each server and with each tool",
		Long: fmt.Sprintf(`Show what one caller may do under the active policy: for each tool, whether every call is
allowed, limited, needs approval or is denied, or on which condition this depends. For more than
%d tools, the table has a line for each server; --server and -o json show all tools. A call can
still be refused because of its arguments or a limit.`, maxAccessRows),
		Example: "  " + t.self + " policy access --token ci-agent --server files",
		Args:    args(cobra.NoArgs),
		RunE:    func(c *cobra.Command, _ []string) error { return t.runAccess(c.Context(), &f) },
	}
	flags := c.Flags()
	flags.StringVar(&f.server, "server", "", "only this server, with its tools")
	flags.StringVar(&f.token, "token", "", "the name of a configured token, which sets the caller's tenant, subject, agent and groups")
	flags.StringVar(&f.tenant, "tenant", "default", "the caller's tenant")
	flags.StringVar(&f.subject, "subject", "local-agent", "the caller's subject")
	flags.StringVar(&f.agent, "agent", "local", "the caller's agent")
	flags.StringSliceVar(&f.groups, "groups", nil, "the caller's groups")
	flags.StringVar(&f.issuer, "issuer", "", "the issuer of the caller's JWT, by its name (default a token of the mesh)")
	flags.StringVar(&f.client, "client", "", "the OAuth client of the caller's JWT")
	flags.StringSliceVar(&f.scopes, "scopes", nil, "the OAuth scopes of the caller's JWT")
	for _, other := range []string{"tenant", "subject", "agent", "groups", "issuer", "client", "scopes"} {
		c.MarkFlagsMutuallyExclusive("token", other)
	}
	_ = c.RegisterFlagCompletionFunc("server", t.completeServer)
	return c
}

// accessAnswer describes which tools of some servers one caller may use.
type accessAnswer struct {
	subject  *identityv1.Principal
	revision string
	servers  []*policyv1.ServerAccess
	// tools contains the caller's access to the tools of each server.
	tools map[string][]*policyv1.ToolAccess
}

func (t *tool) runAccess(ctx context.Context, flags *accessFlags) error {
	f, err := t.load()
	if err != nil {
		return err
	}
	conn, err := t.dial(f, authv1.Role_ROLE_POLICY)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only the answer matters
	subject := &identityv1.Principal{
		Tenant: flags.tenant, Subject: flags.subject, Agent: flags.agent, Groups: flags.groups, Role: authv1.TokenRole_TOKEN_ROLE_AGENT,
		Issuer: flags.issuer, Client: flags.client, Scopes: flags.scopes,
	}
	if flags.token != "" {
		err := t.withIdentityOf(ctx, f, func(ctx context.Context, client identityv1.IdentityServiceClient) (err error) {
			subject, err = t.principalOfToken(ctx, client, flags.token)
			return err
		})
		if err != nil {
			return err
		}
	}
	answer, err := t.readAccess(ctx, policyv1.NewPolicyServiceClient(conn), subject, flags.server)
	if err != nil {
		return err
	}
	if t.json() {
		return t.printAccessJSON(answer)
	}
	t.printf("subject %s, agent %s, tenant %s, groups %s; revision %.8s", subject.GetSubject(), orDash(subject.GetAgent()),
		subject.GetTenant(), orDash(strings.Join(subject.GetGroups(), ", ")), answer.revision)
	return t.printAccess(answer)
}

// principalOfToken returns the principal of calls with the named token.
func (t *tool) principalOfToken(ctx context.Context, client identityv1.IdentityServiceClient, name string) (*identityv1.Principal, error) {
	req := &identityv1.ListTokensRequest{}
	for {
		requestCtx, cancel := requestContext(ctx)
		resp, err := client.ListTokens(requestCtx, req)
		cancel()
		if err != nil {
			return nil, t.explainError(err)
		}
		for _, token := range resp.GetTokens() {
			if token.GetName() != name {
				continue
			}
			if token.GetRole() != authv1.TokenRole_TOKEN_ROLE_AGENT {
				return nil, fmt.Errorf("the token %q has the role %s, and only tokens of agents may call tools", name, strings.ToLower(strings.TrimPrefix(token.GetRole().String(), "TOKEN_ROLE_")))
			}
			return &identityv1.Principal{
				Tenant: token.GetTenant(), Subject: token.GetSubject(), Agent: token.GetAgent(), Owner: token.GetOwner(), Groups: token.GetGroups(), Role: token.GetRole(),
			}, nil
		}
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			return nil, fmt.Errorf("there is no token %q in your tenant: `auth.tokens` of the configuration names them", name)
		}
	}
}

// readAccess reads the summaries of the servers. It also reads the tools of the servers whose tools are printed.
func (t *tool) readAccess(ctx context.Context, client policyv1.PolicyServiceClient, subject *identityv1.Principal, server string) (*accessAnswer, error) {
	out := &accessAnswer{subject: subject, tools: make(map[string][]*policyv1.ToolAccess)}
	if server != "" {
		return out, t.readAccessPages(ctx, client, out, server)
	}
	if err := t.readAccessPages(ctx, client, out, ""); err != nil {
		return nil, err
	}
	total := 0
	for _, s := range out.servers {
		total += toolsOf(s)
	}
	if total > maxAccessRows && !t.json() {
		return out, nil
	}
	summaries := out.servers
	out.servers = nil
	for _, s := range summaries {
		if err := t.readAccessPages(ctx, client, out, s.GetServer()); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (t *tool) readAccessPages(ctx context.Context, client policyv1.PolicyServiceClient, out *accessAnswer, server string) error {
	req := &policyv1.ListAccessRequest{Subject: out.subject, Server: server, PageSize: accessPage}
	for {
		requestCtx, cancel := requestContext(ctx)
		resp, err := client.ListAccess(requestCtx, req)
		cancel()
		if err != nil {
			return t.explainError(err)
		}
		if out.revision != "" && resp.GetPolicyRevision() != out.revision {
			return errors.New("the policy or the catalog has changed while the command was reading: run it again")
		}
		out.revision = resp.GetPolicyRevision()
		out.addServers(resp.GetServers())
		if server != "" {
			out.tools[server] = append(out.tools[server], resp.GetTools()...)
		}
		last := req.GetPageToken()
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" || req.GetPageToken() == last {
			return nil
		}
	}
}

// addServers adds the summaries on a page. If a server's tools are on several pages, it adds up their counts.
func (a *accessAnswer) addServers(page []*policyv1.ServerAccess) {
	for _, s := range page {
		at := slices.IndexFunc(a.servers, func(o *policyv1.ServerAccess) bool { return o.GetServer() == s.GetServer() })
		if at < 0 {
			a.servers = append(a.servers, s)
			continue
		}
		known := a.servers[at]
		for _, c := range s.GetCounts() {
			i := slices.IndexFunc(known.GetCounts(), func(o *policyv1.OutcomeCount) bool { return o.GetOutcome() == c.GetOutcome() })
			if i < 0 {
				known.Counts = append(known.Counts, c)
			} else {
				known.Counts[i].Tools += c.GetTools()
			}
		}
		slices.SortFunc(known.GetCounts(), func(x, y *policyv1.OutcomeCount) int { return cmp.Compare(x.GetOutcome(), y.GetOutcome()) })
	}
}

func toolsOf(s *policyv1.ServerAccess) (n int) {
	for _, c := range s.GetCounts() {
		n += int(c.GetTools())
	}
	return n
}

func (t *tool) printAccessJSON(a *accessAnswer) error {
	type server struct {
		Server jsontext.Value   `json:"server"`
		Tools  []jsontext.Value `json:"tools"`
	}
	out := struct {
		Subject  jsontext.Value `json:"subject"`
		Revision string         `json:"policyRevision"`
		Servers  []server       `json:"servers"`
	}{Revision: a.revision}
	var errs []error
	encode := func(m proto.Message) jsontext.Value {
		raw, err := protojson.Marshal(m)
		errs = append(errs, err)
		return raw
	}
	out.Subject = encode(a.subject)
	for _, s := range a.servers {
		one := server{Server: encode(s)}
		for _, tool := range a.tools[s.GetServer()] {
			one.Tools = append(one.Tools, encode(tool))
		}
		out.Servers = append(out.Servers, one)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return t.printJSON(out)
}

// printAccess prints the tools of each server. If the tools were not read, it prints a table of the servers instead.
func (t *tool) printAccess(a *accessAnswer) error {
	if len(a.tools) == 0 {
		return t.printAccessSummary(a.servers)
	}
	incomplete := false
	for _, s := range a.servers {
		fmt.Fprintln(t.out)
		t.printf("%s: %s", s.GetServer(), serverAccessText(s))
		t.printf("other methods that are not denied: %s", orDash(strings.Join(s.GetMethods(), ", ")))
		var rows [][]string
		for _, tool := range a.tools[s.GetServer()] {
			rows = append(rows, accessRows(tool)...)
			incomplete = incomplete || tool.GetIncomplete()
		}
		if len(rows) == 0 {
			continue
		}
		if err := t.table([]string{"TOOL", "ACCESS", "RULE", "DETAILS"}, rows); err != nil {
			return err
		}
	}
	if incomplete {
		t.printf("incomplete: the calls of a tool depend on more conditions than are combined, so further results are possible.")
		t.printf("%s shows the result of one call.", t.command("policy explain --server SERVER --tool TOOL --arg NAME=VALUE"))
	}
	return nil
}

func (t *tool) printAccessSummary(servers []*policyv1.ServerAccess) error {
	outcomes := []policyv1.AccessOutcome{
		policyv1.AccessOutcome_ACCESS_OUTCOME_ALLOWED, policyv1.AccessOutcome_ACCESS_OUTCOME_LIMITED, policyv1.AccessOutcome_ACCESS_OUTCOME_APPROVAL,
		policyv1.AccessOutcome_ACCESS_OUTCOME_DEPENDS, policyv1.AccessOutcome_ACCESS_OUTCOME_DENIED, policyv1.AccessOutcome_ACCESS_OUTCOME_HIDDEN,
		policyv1.AccessOutcome_ACCESS_OUTCOME_CHANGED, policyv1.AccessOutcome_ACCESS_OUTCOME_QUARANTINED,
	}
	head := []string{"SERVER", "TOOLS"}
	for _, o := range outcomes {
		head = append(head, strings.ToUpper(enum.Name(o)))
	}
	var rows [][]string
	for _, s := range servers {
		row := []string{s.GetServer(), fmt.Sprint(toolsOf(s))}
		if !s.GetListed() {
			row[1] = "not listed yet"
		}
		for _, o := range outcomes {
			n := int32(0)
			if i := slices.IndexFunc(s.GetCounts(), func(c *policyv1.OutcomeCount) bool { return c.GetOutcome() == o }); i >= 0 {
				n = s.GetCounts()[i].GetTools()
			}
			row = append(row, fmt.Sprint(n))
		}
		rows = append(rows, append(row, orDash(strings.Join(s.GetMethods(), ", "))))
	}
	if err := t.table(append(head, "OTHER METHODS"), rows); err != nil {
		return err
	}
	t.printf("--server NAME prints the tools of one server")
	return nil
}

func serverAccessText(s *policyv1.ServerAccess) string {
	var parts []string
	for _, c := range s.GetCounts() {
		parts = append(parts, fmt.Sprintf("%d %s", c.GetTools(), enum.Name(c.GetOutcome())))
	}
	text := fmt.Sprintf("%d tools", toolsOf(s))
	if toolsOf(s) == 1 {
		text = "1 tool"
	}
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	if !s.GetListed() {
		text = "not listed yet"
	}
	if s.GetQuarantined() {
		text += "; the server is quarantined"
	}
	if !s.GetCouldAllow() {
		text += "; every call is denied"
	}
	return text
}

// accessRows returns one row for each case that the policy distinguishes in calls to a tool. It omits the case in which
// a condition can't be evaluated, unless calls are refused only in this case.
func accessRows(tool *policyv1.ToolAccess) [][]string {
	failed := func(c *policyv1.AccessCase) bool { return c.GetCode() == commonv1.Code_CODE_TYPE_ERROR }
	other := func(c *policyv1.AccessCase) bool { return c.GetEffect() == policyv1.Effect_EFFECT_DENY && !failed(c) }
	hasOther := slices.ContainsFunc(tool.GetCases(), other)
	cases := slices.DeleteFunc(slices.Clone(tool.GetCases()), func(c *policyv1.AccessCase) bool { return failed(c) && hasOther })
	slices.SortStableFunc(cases, func(a, b *policyv1.AccessCase) int { // calls to which no condition applies come last
		return cmp.Compare(conditionOrder(a), conditionOrder(b))
	})
	var rows [][]string
	name, outcome := tool.GetName(), enum.Name(tool.GetOutcome())
	for _, c := range cases {
		rule := ruleName(c.GetRule())
		if code := c.GetCode(); c.GetRule() == nil && (code == commonv1.Code_CODE_UNSPECIFIED || code == commonv1.Code_CODE_DENIED_BY_DEFAULT) {
			rule = "default"
		}
		rows = append(rows, []string{name, outcome, rule, caseText(tool, c)})
		name, outcome = "", ""
	}
	if tool.GetIncomplete() {
		rows = append(rows, []string{"", "", "-", "incomplete: too many conditions"})
	}
	return rows
}

func conditionOrder(c *policyv1.AccessCase) int {
	if conditionText(c) == otherwise {
		return 1
	}
	return 0
}

func caseText(tool *policyv1.ToolAccess, c *policyv1.AccessCase) string {
	var parts []string
	if tool.GetOutcome() == policyv1.AccessOutcome_ACCESS_OUTCOME_DEPENDS {
		parts = append(parts, effectName(c.GetEffect())+" "+conditionText(c))
	} else if c.GetCondition() != "" {
		parts = append(parts, conditionText(c))
	}
	if c.GetEffect() == policyv1.Effect_EFFECT_REQUIRE_APPROVAL {
		parts = append(parts, "by "+safetext.Approvers(c.GetApproval()))
	}
	for _, l := range c.GetLimits() {
		if !l.GetCap() {
			parts = append(parts, fmt.Sprintf("at most %s in %s per %s", l.GetLimit().GetMax(), l.GetLimit().GetWindow().AsDuration(), strings.Join(l.GetPer(), "+")))
		}
	}
	switch {
	case c.GetMessage() != "":
		parts = append(parts, c.GetMessage())
	case c.GetEffect() == policyv1.Effect_EFFECT_DENY && c.GetRule() == nil:
		parts = append(parts, enum.NameOrEmpty(c.GetCode()))
	}
	return strings.Join(parts, "; ")
}

// otherwise describes the calls to which none of a tool's conditions applies.
const otherwise = "otherwise"

// conditionText describes the calls to which a case applies.
func conditionText(c *policyv1.AccessCase) string {
	switch {
	case c.GetCode() == commonv1.Code_CODE_TYPE_ERROR:
		return "if the condition can't be evaluated"
	case c.GetCondition() == "":
		return otherwise
	case c.GetHolds():
		return "if " + c.GetCondition()
	default:
		return "unless " + c.GetCondition()
	}
}
