package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/viewtext"
	"github.com/sluice-mesh/sluice/services/policy"
)

func (t *tool) policy() *cobra.Command {
	return group("policy", "Check policy documents, and explain their decisions", t.policyLint(), t.policyExplain(), t.policySuggest())
}

func (t *tool) policyLint() *cobra.Command {
	return &cobra.Command{
		Use:   "lint FILE...",
		Short: "Check that policy documents load together, offline",
		Long: `Check that documents load together. With --config, also check that people can give each
approval, that the named servers are configured, and that the tools were listed when the
mesh last ran. Nothing is sent. The command exits with 1 if a document would not load;
warnings are not failures.`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, given []string) error {
			documents, err := policy.ReadDocuments(given)
			if err != nil {
				return err
			}
			if t.config == "" { // without it, who may approve is not known
				return t.printFindings(policy.Lint(documents), len(documents))
			}
			f, err := t.load()
			if err != nil {
				return err
			}
			unknown := policy.UnknownNames(documents, inventoryOf(c.Context(), f))
			return t.printFindings(append(policy.LintFor(withGenerated(f), documents), unknown...), len(documents))
		},
	}
}

type finding struct {
	Severity   string `json:"severity"`
	Path       string `json:"path"`
	Line       int32  `json:"line"`
	Column     int32  `json:"column"`
	Message    string `json:"message"`
	Suggestion string `json:"suggestion,omitzero"`
}

func (t *tool) printFindings(findings []*policyv1.Finding, documents int) error {
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
			t.printf("%s%s: %s", placeOf(findings[i]), f.Severity, adviceOf(findings[i]))
		}
	}
	if slices.ContainsFunc(findings, refuses) {
		return errSilent
	}
	if !t.json() {
		fmt.Fprintf(t.out, "%d document(s) load\n", documents)
	}
	return nil
}

// refuses reports whether a finding prevents a document from being loaded.
func refuses(f *policyv1.Finding) bool {
	s := f.GetSeverity()
	return s != policyv1.Severity_SEVERITY_WARNING && s != policyv1.Severity_SEVERITY_INFO
}

// placeOf returns the position of a finding as a prefix of its text; empty without a position.
func placeOf(f *policyv1.Finding) string {
	if f.GetPath() == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d:%d: ", f.GetPath(), f.GetLine(), f.GetColumn())
}

// adviceOf returns a finding's text, and what to do.
func adviceOf(f *policyv1.Finding) string {
	if f.GetSuggestion() == "" {
		return f.GetMessage()
	}
	return f.GetMessage() + "; " + f.GetSuggestion()
}

func (t *tool) policySuggest() *cobra.Command {
	var used bool
	c := useListOr(&cobra.Command{
		Use:   "suggest --server NAME [--used | --file FILE | --run -- COMMAND...]",
		Short: "Write a first policy for a server, from the definitions of its tools",
		Long: `Write a first policy document for a server to standard output. It names each tool, with the
words of the definition that decided, and denies everything else. Tools that read are
allowed. Tools that write or run something have a rate limit. Tools that remove something,
move money, or don't say what they do need approval. It is a draft: read it before you use it.

Without --file and --run, the server is one of the running mesh, and the document follows
the catalog with people's decisions. With --used, the document names only tools that agents
of your tenant have called, according to the gateway's journal, with limits that permit such
use; the other tools are comments.` + aboutLists,
		Example: "  " + t.self + " policy suggest --server files > files.yaml\n" +
			"  " + t.self + " policy suggest --server files --used > files.yaml\n" +
			"  " + t.self + " policy suggest --server files --run -- npx -y @modelcontextprotocol/server-filesystem@2026.8.31 /tmp > files.yaml\n" +
			"  " + t.self + " policy lint files.yaml",
	}, func(ctx context.Context, server string, tools []policy.ClassifiedTool) error {
		var use map[string]policy.Use
		if used {
			var err error
			if use, err = t.useOf(ctx, server); err != nil {
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
	}, t.registered)
	c.Flags().BoolVar(&used, "used", false, "only tools that were called, according to the journal")
	c.MarkFlagsMutuallyExclusive("used", "file")
	c.MarkFlagsMutuallyExclusive("used", "run")
	_ = c.RegisterFlagCompletionFunc("server", t.completeServer)
	return c
}

// registered returns the tools of a server of the running mesh, as its catalog classifies them.
func (t *tool) registered(ctx context.Context, server string) ([]policy.ClassifiedTool, error) {
	client, done, err := t.catalogClient()
	if err != nil {
		return nil, err
	}
	defer done()
	all, err := t.wholeCatalogue(ctx, client, server)
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

// explainFlags describe a call and its caller.
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

// call returns the described call without its params.
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

// params returns the params of the described call; empty if no flag sets them.
func (f *explainFlags) params() (string, error) {
	switch {
	case f.paramsJSON != "" && (len(f.arg) > 0 || f.args != ""):
		return "", usageError{errors.New("give --params, or --arg or --args")}
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
		Short: "Show what the active policy decides on a call, and why; nothing is called or counted",
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
	flags.StringVar(&f.args, "args", "", "all arguments as one JSON object; - reads it from standard input")
	flags.StringVar(&f.paramsJSON, "params", "", "the request's params, a JSON object with the arguments inside")
	flags.BoolVar(&f.all, "all", false, "print all rules that were considered, not only those that decided")
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
	ctx, cancel := ask(ctx)
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
		return t.explain(err)
	}
	if err := t.printExplanation(resp, params != "", flags.all); err != nil {
		return err
	}
	t.noteServer(ctx, f, flags.server)
	for _, why := range t.rejectedPolicy(ctx, f) {
		fmt.Fprintf(t.errOut, "sluice: this is the revision before the newest documents, which do not load: %s\n", why)
	}
	return nil
}

// noteServer prints a note if no server of that name is configured: policy decides by name and has an answer for any.
// If the gateway does not say which servers it has, noteServer says that.
func (t *tool) noteServer(ctx context.Context, f *config.File, name string) {
	gateway, err := t.gatewayStatus(ctx, f)
	if err != nil {
		return
	}
	var known []string
	for _, s := range gateway.GetServers() {
		if s.GetName() == name {
			return
		}
		known = append(known, s.GetName())
	}
	_ = oneLine(t.errOut, "sluice: no server %s is configured, so such a call is refused before policy decides; the servers are: %s",
		strconv.Quote(name), orDash(strings.Join(known, ", ")))
}

// termsText returns what an approval requires, in one line.
func termsText(terms *policyv1.ApprovalTerms) string {
	parts := []string{"by " + viewtext.Who(terms)}
	if d := terms.GetDecideWithin(); d != nil {
		parts = append(parts, "decided within "+d.AsDuration().String())
	}
	if d := terms.GetExecuteWithin(); d != nil {
		parts = append(parts, "made within "+d.AsDuration().String())
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
