package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/policy"
)

type explainFlags struct {
	server, tool, method   string
	prompt, uri            string
	tenant, subject, agent string
	groups                 []string
	issuer, client         string
	scopes                 []string
	session, run           string
	paramsJSON             string
	arg                    []string
	args                   string
	all                    bool
	draft                  []string
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

// params returns the params of the call in the flags, or "" if no flag sets them.
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
		Long: `Show what the active policy of the running mesh decides on a call, and why. The call is not
made, and is not counted against limits. With --draft, give all documents of the mesh: they
replace the active documents. The command exits with 1 if the draft does not load.`,
		Example: "  " + t.self + " policy explain --server pay --tool refund --arg amount=12.50 --draft draft/",
		Args:    args(cobra.NoArgs),
		RunE:    func(c *cobra.Command, _ []string) error { return t.runExplain(c.Context(), f) },
	}
	flags := c.Flags()
	flags.StringVar(&f.server, "server", "", "the server's name")
	flags.StringVar(&f.tool, "tool", "", "the tool's name, or the name in the params of another method")
	flags.StringVar(&f.prompt, "prompt", "", "the prompt's name, for prompts/get or completion/complete")
	flags.StringVar(&f.uri, "uri", "", "the resource's URI, or for completion/complete also a template")
	flags.StringVar(&f.method, "method", "", "the MCP method (default tools/call, prompts/get with --prompt, resources/read with --uri)")
	flags.StringVar(&f.tenant, "tenant", "default", "the caller's tenant")
	flags.StringVar(&f.subject, "subject", "local-agent", "the caller's subject")
	flags.StringVar(&f.agent, "agent", "local", "the caller's agent")
	flags.StringSliceVar(&f.groups, "groups", nil, "the caller's groups")
	flags.StringVar(&f.issuer, "issuer", "", "the issuer of the caller's JWT, by its name (default a token of the mesh)")
	flags.StringVar(&f.client, "client", "", "the OAuth client of the caller's JWT")
	flags.StringSliceVar(&f.scopes, "scopes", nil, "the OAuth scopes of the caller's JWT")
	flags.StringVar(&f.session, "session", "", "the caller's session")
	flags.StringVar(&f.run, "run", "", "the caller's run")
	flags.StringArrayVar(&f.arg, "arg", nil, "an argument as NAME=VALUE; VALUE is JSON, or otherwise text; may be repeated")
	flags.StringVar(&f.args, "args", "", "all arguments as one JSON object; - reads standard input")
	flags.StringVar(&f.paramsJSON, "params", "", "the request's params as a JSON object, with the arguments inside")
	flags.BoolVar(&f.all, "all", false, "also print all considered rules, conditions and limits")
	flags.StringArrayVar(&f.draft, "draft", nil, "use the documents in this file or folder; may be repeated")
	_ = c.MarkFlagRequired("server")
	c.MarkFlagsOneRequired("tool", "prompt", "uri", "method")
	c.MarkFlagsMutuallyExclusive("tool", "prompt", "uri")
	return c
}

func (t *tool) runExplain(ctx context.Context, flags explainFlags) error {
	call := flags.call()
	var err error
	if call.ParamsJson, err = flags.params(); err != nil {
		return err
	}
	subject := &identityv1.Principal{
		Tenant: flags.tenant, Subject: flags.subject, Agent: flags.agent, Groups: flags.groups,
		Issuer: flags.issuer, Client: flags.client, Scopes: flags.scopes,
		Session: flags.session, Run: flags.run, Role: authv1.TokenRole_TOKEN_ROLE_AGENT,
	}
	resp, err := t.explanation(ctx, call, subject, flags.draft)
	if err != nil {
		return err
	}
	if err := t.printExplanation(resp, call.GetParamsJson() != "", flags.all); err != nil {
		return err
	}
	f, err := t.load()
	if err != nil {
		return err
	}
	ctx, cancel := requestContext(ctx)
	defer cancel()
	t.warnUnknownServer(ctx, f, flags.server)
	if len(flags.draft) > 0 {
		return nil
	}
	for _, why := range rejectedLines(t.activeRevision(ctx, f)) {
		fmt.Fprintf(t.errOut, "sluice: the newest policy documents do not load, so this is the decision of the previous revision: %s\n", why)
	}
	return nil
}

// explanation returns the running mesh's explanation of a decision. If drafts is not empty, the mesh evaluates the call
// with the documents at these paths instead of the active documents.
func (t *tool) explanation(ctx context.Context, call *policyv1.Call, subject *identityv1.Principal, drafts []string) (*policyv1.ExplainCallResponse, error) {
	var documents []*policyv1.Document
	if len(drafts) > 0 {
		var err error
		if documents, err = policy.ReadDocuments(drafts); err != nil {
			return nil, err
		}
	}
	client, done, err := t.policyClient()
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := requestContext(ctx)
	defer cancel()
	if len(drafts) == 0 {
		resp, err := client.ExplainCall(ctx, &policyv1.ExplainCallRequest{Call: call, Subject: subject})
		if err != nil {
			return nil, t.explainError(err)
		}
		return resp, nil
	}
	resp, err := client.SimulateCall(ctx, &policyv1.SimulateCallRequest{Documents: documents, Call: call, Subject: subject})
	if err != nil {
		return nil, t.explainError(err)
	}
	if len(resp.GetFindings()) > 0 || resp.GetExplanation() == nil {
		return nil, cmp.Or(t.printFindings(resp.GetFindings(), "the documents do not load"), errSilent)
	}
	return resp.GetExplanation(), nil
}

// warnUnknownServer prints a note if the gateway has no server with this name. The note is necessary because the policy
// service also evaluates calls to servers that don't exist. It prints nothing if the gateway does not respond.
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
