package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
	"github.com/sluice-mesh/sluice/services/policy"
)

func (t *tool) policy() *cobra.Command {
	return group("policy", "Check policy documents, and explain their decisions", t.policyLint(), t.policyTest(), t.policyExplain(), t.policyAccess(), t.policyDiff(), t.policyReplay(), t.policySuggest(), t.policySchema())
}

func (t *tool) policyLint() *cobra.Command {
	live := false
	c := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Check policy documents, offline or against the tools of the running mesh",
		Long: `Check that documents load together and pass their tests, and find rules without effect. With
--config, also check that there are people who can give each approval, and compare the documents
with the servers' tools when the mesh last ran: names that no server or tool has, conditions that
read missing or optional arguments or compare them with values of another type, and dangerous
tools that no rule names. The command then sends nothing over the network. With --live, the
running mesh checks the documents, with the tools that the servers list now.

The command exits with 1 if a document would not load, or if a condition reads an argument that
not every call has. It exits with 0 if there are only warnings.`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, given []string) error {
			check := t.checkDocuments
			if live {
				check = t.checkLive
			}
			findings, documents, err := check(c.Context(), given)
			if err != nil {
				return err
			}
			summary := fmt.Sprintf("%d document(s) load", len(documents))
			if tests := policy.CountTests(documents); tests > 0 {
				summary += fmt.Sprintf(", %d test(s) pass", tests)
			}
			return t.printFindings(findings, summary)
		},
	}
	c.Flags().BoolVar(&live, "live", false, "let the running mesh check the documents")
	return c
}

// checkLive reads documents and lets the policy service of the running mesh check them.
func (t *tool) checkLive(ctx context.Context, paths []string) ([]*policyv1.Finding, []*policyv1.Document, error) {
	documents, err := policy.ReadDocuments(paths)
	if err != nil {
		return nil, nil, err
	}
	f, err := t.load()
	if err != nil {
		return nil, nil, err
	}
	conn, err := t.dial(f, authv1.Role_ROLE_POLICY)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close() //nolint:errcheck // only the answer matters
	ctx, cancel := requestContext(ctx)
	defer cancel()
	resp, err := policyv1.NewPolicyServiceClient(conn).LintDocuments(ctx, &policyv1.LintDocumentsRequest{Documents: documents})
	if err != nil {
		return nil, nil, t.explainError(err)
	}
	return resp.GetFindings(), documents, nil
}

// checkDocuments reads and checks documents. Without a configuration, the approvers and the servers are not known and
// not checked.
func (t *tool) checkDocuments(ctx context.Context, paths []string) ([]*policyv1.Finding, []*policyv1.Document, error) {
	documents, err := policy.ReadDocuments(paths)
	if err != nil {
		return nil, nil, err
	}
	if t.config == "" {
		return policy.Lint(documents), documents, nil
	}
	f, err := t.load()
	if err != nil {
		return nil, nil, err
	}
	compared := policy.LintLists(documents, toolListsOf(ctx, f))
	return append(policy.LintFor(withGeneratedTokens(f), documents), compared...), documents, nil
}

type finding struct {
	Severity   string `json:"severity"`
	Path       string `json:"path"`
	Line       int32  `json:"line"`
	Column     int32  `json:"column"`
	Message    string `json:"message"`
	Suggestion string `json:"suggestion,omitzero"`
}

// printFindings prints findings about documents, and the summary if the documents load.
func (t *tool) printFindings(findings []*policyv1.Finding, summary string) error {
	out := make([]finding, len(findings))
	for i, f := range findings {
		out[i] = finding{
			Severity: enum.Name(f.GetSeverity()),
			Path:     f.GetPath(), Line: f.GetLine(), Column: f.GetColumn(), Message: f.GetMessage(), Suggestion: f.GetSuggestion(),
		}
	}
	if t.json() {
		if err := t.printJSON(out); err != nil {
			return err
		}
	} else {
		for i, f := range out {
			t.printf("%s%s: %s", findingPosition(findings[i]), f.Severity, findingText(findings[i]))
		}
	}
	if slices.ContainsFunc(findings, blocksLoading) {
		return errSilent
	}
	if !t.json() {
		t.printf("%s", summary)
	}
	return nil
}

// blocksLoading reports whether a document with this finding does not load.
func blocksLoading(f *policyv1.Finding) bool {
	s := f.GetSeverity()
	return s != policyv1.Severity_SEVERITY_WARNING && s != policyv1.Severity_SEVERITY_INFO
}

// findingPosition returns the position of a finding as a prefix for its message, or "" if the finding has no position.
func findingPosition(f *policyv1.Finding) string {
	if f.GetPath() == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d:%d: ", f.GetPath(), f.GetLine(), f.GetColumn())
}

func findingText(f *policyv1.Finding) string {
	if f.GetSuggestion() == "" {
		return f.GetMessage()
	}
	return f.GetMessage() + "; " + f.GetSuggestion()
}

func (t *tool) policySuggest() *cobra.Command {
	var used bool
	var since string
	c := withOptionalToolList(&cobra.Command{
		Use:   "suggest --server NAME [--used [--since TIME] | --file FILE | --run -- COMMAND...]",
		Short: "Write a first policy for a server, from the definitions of its tools",
		Long: `Write a first policy document for a server to standard output. The document has a rule for
each tool, with the words of the tool's definition that are the reason for the rule, and denies
all other calls. Tools that read are allowed. Tools that write or run something have a rate
limit. Tools that delete or overwrite something, move money, or don't say what they do need
approval. The document is a draft: read it before you use it.

Without --file and --run, the command reads the server's tools from the catalog of the running
mesh, with the overrides of people. With --used, the document has rules only for tools that
agents of your tenant have called, according to the gateway's journal, and limits that permit
this use. The other tools are comments. With --since, only calls since that time count. Calls
that passed because a rule or a server was observed count, too: ` + "`report`" + ` shows what the
policy would have done with them.` + aboutLists,
		Example: "  " + t.self + " policy suggest --server files > files.yaml\n" +
			"  " + t.self + " policy suggest --server files --used > files.yaml\n" +
			"  " + t.self + " policy suggest --server files --run -- npx -y @modelcontextprotocol/server-filesystem@2026.8.31 /tmp > files.yaml\n" +
			"  " + t.self + " policy lint files.yaml",
	}, func(ctx context.Context, server string, tools []policy.ClassifiedTool) error {
		var use map[string]policy.Use
		if used {
			filter := new(gatewayv1.DecisionFilter)
			err := setTimes(filter, since, "", time.Now())
			if err != nil {
				return usageError{err}
			}
			if use, err = t.readToolUses(ctx, server, filter.GetSince()); err != nil {
				return err
			}
		}
		text, err := policy.Suggest(server, tools, use)
		if err != nil {
			return err
		}
		if t.json() {
			return t.printJSON(map[string]string{"server": server, "document": string(text)})
		}
		_, err = t.out.Write(text)
		return err
	}, t.catalogTools)
	c.Flags().BoolVar(&used, "used", false, "only tools that were called, according to the journal")
	c.Flags().StringVar(&since, "since", "", "with --used, only calls since this time: RFC 3339, or how long ago (15m, 2h, 7d)")
	c.MarkFlagsMutuallyExclusive("used", "file")
	c.MarkFlagsMutuallyExclusive("used", "run")
	c.MarkFlagsMutuallyExclusive("since", "file")
	c.MarkFlagsMutuallyExclusive("since", "run")
	_ = c.RegisterFlagCompletionFunc("server", t.completeServer)
	return c
}

// catalogTools returns the tools of a server with their classes from the catalog of the running mesh.
func (t *tool) catalogTools(ctx context.Context, server string) ([]policy.ClassifiedTool, error) {
	client, done, err := t.catalogClient()
	if err != nil {
		return nil, err
	}
	defer done()
	all, err := t.readCatalog(ctx, client, server)
	if err != nil {
		return nil, err
	}
	out := make([]policy.ClassifiedTool, 0, len(all.Tools))
	for _, page := range all.Tools {
		if page.GetListedNow() {
			out = append(out, policy.ClassifiedTool{Name: page.GetName(), Classification: page.GetClassification()})
		}
	}
	return out, nil
}

type explainFlags struct {
	server, tool, method   string
	prompt, uri            string
	tenant, subject, agent string
	groups                 []string
	session, run           string
	paramsJSON             string
	arg                    []string
	args                   string
	all                    bool
}

func (f *explainFlags) call() *policyv1.Call {
	out := &policyv1.Call{Method: f.method, Server: f.server, Name: f.tool}
	usual, ref := "", ""
	switch {
	case f.prompt != "":
		out.Name, usual, ref = f.prompt, "prompts/get", "ref/prompt"
	case f.uri != "":
		out.Name, usual, ref = f.uri, "resources/read", "ref/resource"
	}
	out.Method = cmp.Or(out.Method, usual)
	if out.GetMethod() == "completion/complete" {
		out.Ref = ref
	}
	return out
}

// params returns the params of the described call, or "" if no flag sets them.
func (f *explainFlags) params() (string, error) {
	switch {
	case f.paramsJSON != "" && (len(f.arg) > 0 || f.args != ""):
		return "", usageError{errors.New("--params can't be used together with --arg or --args: use one of them")}
	case f.paramsJSON != "":
		params, err := jsonObject("params", f.paramsJSON)
		return string(params), err
	case len(f.arg) == 0 && f.args == "":
		return "", nil
	}
	arguments, err := callArguments(f.arg, f.args)
	return `{"arguments":` + string(arguments) + `}`, err
}

func (t *tool) policyExplain() *cobra.Command {
	var f explainFlags
	c := &cobra.Command{
		Use:   "explain --server SERVER {--tool TOOL | --prompt PROMPT | --uri URI | --method METHOD}",
		Short: "Show what the active policy decides on a call, and why, without making the call",
		Example: "  " + t.self + " policy explain --server demo --tool delete_note --groups developers\n" +
			"  " + t.self + " policy explain --server pay --tool refund --arg amount=12.50 --arg currency=EUR\n" +
			"  " + t.self + " policy explain --server files --uri file:///srv/notes/today.md",
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return t.runExplain(c.Context(), f) },
	}
	flags := c.Flags()
	flags.StringVar(&f.server, "server", "", "the server's name")
	flags.StringVar(&f.tool, "tool", "", "the tool's name, or the name in the params of another method")
	flags.StringVar(&f.prompt, "prompt", "", "the prompt's name, for prompts/get or completion/complete")
	flags.StringVar(&f.uri, "uri", "", "the resource's URI, for resources/read or another method; for completion/complete also a template")
	flags.StringVar(&f.method, "method", "", "the MCP method (default tools/call, prompts/get with --prompt, resources/read with --uri)")
	flags.StringVar(&f.tenant, "tenant", "default", "the caller's tenant")
	flags.StringVar(&f.subject, "subject", "local-agent", "the caller's subject")
	flags.StringVar(&f.agent, "agent", "local", "the caller's agent")
	flags.StringSliceVar(&f.groups, "groups", nil, "the caller's groups")
	flags.StringVar(&f.session, "session", "", "the caller's session")
	flags.StringVar(&f.run, "run", "", "the caller's run")
	flags.StringArrayVar(&f.arg, "arg", nil, "an argument as NAME=VALUE, like --arg of call; may be repeated")
	flags.StringVar(&f.args, "args", "", "all arguments as one JSON object; - reads the object from standard input")
	flags.StringVar(&f.paramsJSON, "params", "", "the request's params, a JSON object with the arguments inside")
	flags.BoolVar(&f.all, "all", false, "also print all rules that policy considered, with their comparisons, and all conditions and limits")
	_ = c.MarkFlagRequired("server")
	c.MarkFlagsOneRequired("tool", "prompt", "uri", "method")
	c.MarkFlagsMutuallyExclusive("tool", "prompt", "uri")
	return c
}

func (t *tool) runExplain(ctx context.Context, flags explainFlags) error {
	params, err := flags.params()
	if err != nil {
		return err
	}
	f, err := t.load()
	if err != nil {
		return err
	}
	conn, err := t.dial(f, authv1.Role_ROLE_POLICY)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only the answer matters
	ctx, cancel := requestContext(ctx)
	defer cancel()
	call := flags.call()
	call.ParamsJson = params
	resp, err := policyv1.NewPolicyServiceClient(conn).ExplainCall(ctx, &policyv1.ExplainCallRequest{
		Call: call,
		Subject: &identityv1.Principal{
			Tenant: flags.tenant, Subject: flags.subject, Agent: flags.agent, Groups: flags.groups,
			Session: flags.session, Run: flags.run, Role: authv1.TokenRole_TOKEN_ROLE_AGENT,
		},
	})
	if err != nil {
		return t.explainError(err)
	}
	if err := t.printExplanation(resp, params != "", flags.all); err != nil {
		return err
	}
	t.warnUnknownServer(ctx, f, flags.server)
	for _, why := range rejectedLines(t.activeRevision(ctx, f)) {
		fmt.Fprintf(t.errOut, "sluice: the newest policy documents do not load, so this is the decision of the previous revision: %s\n", why)
	}
	return nil
}

// warnUnknownServer prints a note if the gateway has no server with this name. The note is necessary because policy
// also evaluates calls to servers that don't exist. If the gateway does not respond, warnUnknownServer prints nothing.
func (t *tool) warnUnknownServer(ctx context.Context, f *config.File, name string) {
	gateway, err := t.gatewayStatus(ctx, f)
	if err != nil {
		return
	}
	var names []string
	for _, s := range gateway.GetServers() {
		if s.GetName() == name {
			return
		}
		names = append(names, s.GetName())
	}
	_ = oneLine(t.errOut, "sluice: no server %s is configured, so the gateway refuses this call before policy decides; the servers are: %s",
		strconv.Quote(name), orDash(strings.Join(names, ", ")))
}

// termsText returns a description of the terms of an approval, in one line.
func termsText(terms *policyv1.ApprovalTerms) string {
	parts := []string{"by " + safetext.Approvers(terms)}
	if d := terms.GetDecideWithin(); d != nil {
		parts = append(parts, "decided within "+d.AsDuration().String())
	}
	if d := terms.GetExecuteWithin(); d != nil {
		parts = append(parts, "executed within "+d.AsDuration().String())
	}
	if g := terms.GetGrant(); g != nil {
		text := fmt.Sprintf("for up to %d calls within %s", g.GetCalls(), g.GetWithin().AsDuration())
		if len(g.GetWhere()) > 0 {
			text += " where " + strings.Join(g.GetWhere(), " && ")
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}
