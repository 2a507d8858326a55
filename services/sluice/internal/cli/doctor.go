package cli

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/hosttools"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
	"github.com/sluice-mesh/sluice/services/policy"
)

const (
	// agentTokenEnv is the environment variable with the agent's token. doctor needs this token in addition to the
	// operator's token.
	agentTokenEnv = "SLUICE_AGENT_TOKEN" //nolint:gosec // a name, not a token
	// waitTool is a tool of the gateway itself. It can be in any server's list.
	waitTool = "sluice_approval_wait"
	// doctorTimeout is the timeout for the whole command. serverTimeout is the timeout for the requests to one server.
	// maxConcurrentChecks is the maximum number of servers that are checked concurrently.
	doctorTimeout       = 5 * time.Minute
	serverTimeout       = 10 * time.Second
	maxConcurrentChecks = 8
	// expiresSoon is the minimum remaining validity of a certificate for which doctor does not warn.
	expiresSoon = 14 * 24 * time.Hour
)

// These are the states of a check result, from the worst to the best.
const (
	stateProblem = "problem"
	stateWarning = "warning"
	stateOK      = "ok"
)

type checkResult struct {
	State string `json:"state"`
	// Subject is the name of the checked object, such as a server.
	Subject string `json:"of"`
	Result  string `json:"found"`
	// Advice describes what a person should do. It may be empty.
	Advice string `json:"do,omitzero"`
}

func (t *tool) doctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Find problems of the mesh and its servers, and say what to do",
		Long: `Check the configuration, its policies and certificates, the services of the running mesh, each
server, and the tools that the agent gets from it. The agent has the generated token, or the
token in SLUICE_AGENT_TOKEN. The command changes nothing and calls no tool. It exits with 1 if
it finds a problem, and with 0 if it finds only warnings.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := t.load()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), doctorTimeout)
			defer cancel()
			return t.printCheckResults(t.checkAll(ctx, f))
		},
	}
}

// checkAll makes all checks. It continues after a check that finds a problem.
func (t *tool) checkAll(ctx context.Context, f *config.File) []checkResult {
	onDemand, runs := t.checkOnDemand(f)
	if !runs {
		return append(append(t.checkConfig(f, toolListsOf(ctx, f)), checkCertificates(f, time.Now())...), onDemand...)
	}
	h := t.queryRoles(ctx, f)
	out := append(t.checkConfig(f, t.toolListsOf(ctx, f, h)), checkCertificates(f, time.Now())...)
	out = append(append(append(out, t.checkStops(h.stops)...), t.checkMesh(h)...), onDemand...)
	out = append(out, checkObserved(f, h.observedParts)...)
	out = append(out, t.checkTokens(h.ending, time.Now())...)
	out = append(out, t.checkIssuers(ctx, f)...)
	out = append(out, t.checkConnections(ctx, f)...)
	if h.gatewayErr == nil {
		out = append(out, t.checkServers(ctx, f, h.gateway.GetServers())...)
		for _, name := range slices.Sorted(maps.Keys(h.pending)) {
			// The built-in tools of clients are skipped. Their definitions are not pinned, and they stay in the catalog after
			// the hook is removed.
			if n := h.pending[name]; n > 0 && !strings.HasPrefix(name, hosttools.Prefix) {
				out = append(out, checkResult{stateWarning, "tools of " + name, pendingText(n), t.command("catalog diff "+name) + " shows what has changed, and the command that accepts it"})
			}
		}
	}
	return out
}

// toolListsOf returns each server's tools. It gets the lists from the running mesh, or from the data directory if the
// mesh does not respond.
func (t *tool) toolListsOf(ctx context.Context, f *config.File, h roleAnswers) policy.ToolLists {
	out := toolListsOf(ctx, f)
	if h.gatewayErr != nil {
		return out
	}
	client, done, err := t.catalogClient()
	if err != nil {
		return out
	}
	defer done()
	tools, err := t.allTools(ctx, client, &policyv1.ListToolsRequest{PageSize: maxCatalogPage})
	if err != nil {
		return out
	}
	listed := make(map[string][]policy.ListedTool)
	for _, one := range tools {
		if class := one.GetClassification(); one.GetListedNow() {
			listed[one.GetServer()] = append(listed[one.GetServer()], policy.ListedTool{
				Name: one.GetName(), Category: enum.NameOrEmpty(class.GetCategory()), Risk: enum.NameOrEmpty(class.GetRisk()), Tags: class.GetTags(),
			})
		}
	}
	for name := range out.Tools {
		out.Tools[name] = listed[name] // nil if the mesh has no list from the server, or if the list is empty
	}
	return out
}

// checkIssuers checks whether the mesh has the keys of the issuers. It returns no results if the identity service does
// not respond, because another check reports this.
func (t *tool) checkIssuers(ctx context.Context, f *config.File) (out []checkResult) {
	if len(f.Auth.Issuers) == 0 {
		return nil
	}
	for _, token := range f.Auth.Tokens {
		if isApprover := token.Role == "operator" || token.Role == "approver"; isApprover && !f.IsSubjectOfIssuer(token.Subject) {
			out = append(out, checkResult{stateWarning, "token " + token.Name, fmt.Sprintf("its subject %q is not a subject of an issuer: if this person's agents use JWTs, the person could approve the agents' calls", token.Subject), "set its subject to that of the person's JWTs, such as " + f.Auth.Issuers[0].Name + "/ana"})
		}
	}
	_ = t.withIdentityOf(ctx, f, func(ctx context.Context, client identityv1.IdentityServiceClient) error {
		resp, err := client.ListIssuers(ctx, new(identityv1.ListIssuersRequest))
		for _, one := range resp.GetIssuers() {
			subject := "issuer " + one.GetName()
			switch {
			case one.GetKeys() == 0 && one.GetProblem() == "":
				out = append(out, checkResult{stateWarning, subject, "its keys have not been fetched yet, so its JWTs are refused", "run this command again after some seconds"})
			case one.GetKeys() == 0:
				out = append(out, checkResult{stateProblem, subject, "its keys could not be fetched, so its JWTs are refused: " + safetext.Line(one.GetProblem()), "check issuer and key_set, and that the identity service can reach the issuer"})
			case one.GetProblem() != "":
				out = append(out, checkResult{stateWarning, subject, "its keys could not be fetched again: " + safetext.Line(one.GetProblem()), "the keys that were fetched last are used for 24 hours"})
			default:
				out = append(out, checkResult{State: stateOK, Subject: subject, Result: fmt.Sprintf("%d keys, fetched at %s", one.GetKeys(), one.GetFetched().AsTime().Local().Format(time.DateTime))})
			}
		}
		return err
	})
	return out
}

func (t *tool) checkConfig(f *config.File, lists policy.ToolLists) (out []checkResult) {
	subject := cmp.Or(f.Name(), "configuration")
	warnings, err := resolveAll(f, lists)
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			out = append(out, checkResult{stateProblem, subject, line, "correct it, and check again with " + t.command("config check")})
		}
	}
	for _, text := range append(f.Warnings(), warnings...) {
		out = append(out, checkResult{State: stateWarning, Subject: subject, Result: text})
	}
	if len(out) == 0 {
		out = append(out, checkResult{State: stateOK, Subject: subject, Result: "it loads, with its secrets and policies"})
	}
	return out
}

func checkCertificates(f *config.File, now time.Time) (out []checkResult) {
	if f.TLS.Dir == "" {
		return nil
	}
	for _, role := range roles {
		name := authn.RoleName(role)
		file := filepath.Join(f.Path(f.TLS.Dir), name+".pem")
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) && f.HasSeparateRoles() {
			continue // the certificate is on another machine
		}
		subject := "certificate of " + name
		id, _, err := pki.Load(f.Path(f.TLS.Dir), role)
		if err != nil {
			out = append(out, checkResult{stateProblem, subject, err.Error(), "create certificates with `sluice certs`"})
			continue
		}
		out = append(out, checkExpiry(subject, id.Cert.Leaf, now))
	}
	return out
}

func checkExpiry(subject string, leaf *x509.Certificate, now time.Time) checkResult {
	ends := leaf.NotAfter.Local().Format(time.DateTime)
	switch left := leaf.NotAfter.Sub(now); {
	case left <= 0:
		return checkResult{stateProblem, subject, "it expired at " + ends, "create another with `sluice certs`; the role loads it without a restart"}
	case left < expiresSoon:
		return checkResult{stateWarning, subject, "it expires soon, at " + ends, "create another with `sluice certs`; the role loads it without a restart"}
	default:
		return checkResult{State: stateOK, Subject: subject, Result: "it is valid until " + ends}
	}
}

func (t *tool) checkMesh(h roleAnswers) (out []checkResult) {
	if h.gatewayErr != nil {
		// The error already contains advice for the person.
		out = append(out, checkResult{State: stateProblem, Subject: "mesh", Result: h.gatewayErr.Error()})
	}
	for _, r := range h.roles {
		if serving := healthv1.HealthCheckResponse_SERVING.String(); r.Error != "" || r.Status != serving {
			out = append(out, checkResult{stateProblem, "role " + r.Role, strings.TrimSpace(r.Status + " " + r.Error), "read the log of the role, which says why"})
		}
	}
	g := h.gateway
	for _, why := range g.GetNotReady() {
		out = append(out, checkResult{stateProblem, "mesh", why, "all calls are refused until this is corrected"})
	}
	for _, why := range g.GetDegraded() {
		out = append(out, checkResult{stateWarning, "mesh", why, "calls that need this part of the mesh are refused meanwhile"})
	}
	for _, why := range newJournalCheck(g.GetJournal().GetCheck()).Broken {
		out = append(out, checkResult{stateProblem, "journal", why, "see " + t.command("journal verify")})
	}
	for _, c := range silentClients(g) {
		out = append(out, checkResult{stateWarning, "forms", c.String(), "decide on its calls with " + t.command("approvals list")})
	}
	for _, why := range h.rejected {
		out = append(out, checkResult{stateProblem, "policy", why, "correct the file; until then the previous revision stays in force"})
	}
	if h.gatewayErr == nil && len(out) == 0 {
		out = append(out, checkResult{State: stateOK, Subject: "mesh", Result: fmt.Sprintf("%s is ready, under policy %.12s", g.GetVersion(), g.GetPolicyRevision())})
	}
	return out
}

// checkServers checks the state of each server at the gateway, and the tool list that the agent gets from the server.
func (t *tool) checkServers(ctx context.Context, f *config.File, servers []*gatewayv1.ServerStatus) []checkResult {
	secret := agentSecret(f)
	var out []checkResult
	if secret == "" {
		out = append(out, checkResult{stateWarning, "agent", "the agent's lists of tools were not checked, because its token is not in " + tokenFile(f, agentToken), "set " + agentTokenEnv + " to the token"})
	}
	found := make([]checkResult, len(servers))
	slots, all := make(chan struct{}, maxConcurrentChecks), sync.WaitGroup{}
	for i, s := range servers {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			found[i] = t.checkServer(ctx, f, s, secret)
		})
	}
	all.Wait()
	for i, s := range servers {
		out = append(append(out, found[i]), t.checkLists(s)...)
		if notice := s.GetProgramNotice(); notice != "" {
			out = append(out, checkResult{stateWarning, "program of " + s.GetName(), safetext.Line(notice), npmAdvice})
		}
	}
	return append(out, checkSandboxes(servers)...)
}

// checkSandboxes returns warnings about stdio servers for which the kernel does not enforce all restrictions. Servers
// with equal reports share a warning.
func checkSandboxes(servers []*gatewayv1.ServerStatus) (out []checkResult) {
	boxes := make(map[string]sandbox.Report)
	for _, s := range servers {
		if box := s.GetSandbox(); len(box.GetNotHeld()) > 0 {
			boxes[s.GetName()] = sandbox.Report{By: box.GetBy(), Enforced: box.GetHeld(), NotEnforced: box.GetNotHeld(), Why: box.GetWhy()}
		}
	}
	for _, alike := range sandbox.GroupByReport(boxes) {
		text := "not enforced: " + strings.Join(alike.Report.NotEnforced, ", ")
		if alike.Report.Why != "" {
			text += "; " + alike.Report.Why
		}
		out = append(out, checkResult{stateWarning, "sandbox of " + strings.Join(alike.Names, ", "), text, alike.Report.Advice()})
	}
	return out
}

// agentSecret returns the agent's token from SLUICE_AGENT_TOKEN or from the data directory, or "" if there is none. If
// the mesh has a token for each client, as a person's own mesh does, agentSecret returns the first one.
func agentSecret(f *config.File) string {
	if text, ok := app.Env(agentTokenEnv); ok {
		return strings.TrimSpace(text)
	}
	paths := []string{tokenFile(f, agentToken)}
	if clients, err := filepath.Glob(filepath.Join(filepath.Dir(tokenFile(f, agentToken)), "agents", "*")); err == nil {
		paths = append(paths, clients...)
	}
	for _, path := range paths {
		if raw, err := os.ReadFile(path); err == nil {
			return strings.TrimSpace(string(raw))
		}
	}
	return ""
}

// checkServer checks one server. If there is an agent's token, it also checks the tool list that the agent gets.
func (t *tool) checkServer(ctx context.Context, f *config.File, s *gatewayv1.ServerStatus, secret string) checkResult {
	subject := "server " + s.GetName()
	if client, isHost := strings.CutPrefix(s.GetName(), hosttools.Prefix); isHost { // agents neither list nor call its tools
		return checkResult{State: stateOK, Subject: subject, Result: "the hook of " + hosttools.Name(client) + " asks about its tools; " + t.command("hook status "+client) + " checks the hook"}
	}
	if until := s.GetRestsUntil(); until != nil {
		return checkResult{stateProblem, subject, "it could not be reached several times in a row: " + s.GetLastError(), "check that the server is up and that its address is right; the gateway tries again by itself"}
	}
	if secret != "" {
		return t.checkAgentList(ctx, f, s, secret)
	}
	if since := s.GetStartingSince(); since != nil {
		return startingResult(subject, since)
	}
	if s.GetLastError() != "" {
		return checkResult{stateWarning, subject, "its last request had no usable answer: " + s.GetLastError(), installAdvice(s)}
	}
	return checkResult{State: stateOK, Subject: subject, Result: "no problem is known"}
}

// checkAgentList checks the tool list that the agent gets from a server. It reports a problem if the server returns no
// list, unless the server's program is still starting.
func (t *tool) checkAgentList(ctx context.Context, f *config.File, s *gatewayv1.ServerStatus, secret string) checkResult {
	subject := "server " + s.GetName()
	listing, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	n, more, err := t.countListedTools(listing, f, s.GetName(), secret)
	if err != nil {
		s = t.currentStatus(ctx, f, s)
		if since := s.GetStartingSince(); since != nil && s.GetLastError() == "" { // otherwise the last start of the program failed
			return startingResult(subject, since)
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return checkResult{stateProblem, subject, fmt.Sprintf("it gave no answer within %v", serverTimeout) + lastErrorSuffix(s), stdioAdvice(s)}
	case err != nil && !isAbsent(err):
		return checkResult{stateProblem, subject, err.Error() + lastErrorSuffix(s), stdioAdvice(s)}
	case n == 0 && more == "":
		return checkResult{stateWarning, subject, "the agent sees no tool of this server", t.command("policy explain") + " says why; " + t.command("policy suggest") + " writes a policy for the server"}
	default:
		return checkResult{State: stateOK, Subject: subject, Result: fmt.Sprintf("the agent sees %d tools", n) + more + lastErrorSuffix(s)}
	}
}

// currentStatus returns the current status of a server, or the given earlier status if the gateway does not respond.
func (t *tool) currentStatus(ctx context.Context, f *config.File, before *gatewayv1.ServerStatus) *gatewayv1.ServerStatus {
	own := *t // a copy, because other goroutines send requests at the same time
	ctx, cancel := requestContext(ctx)
	defer cancel()
	now, err := own.gatewayStatus(ctx, f)
	if err != nil {
		return before
	}
	for _, s := range now.GetServers() {
		if s.GetName() == before.GetName() {
			return s
		}
	}
	return before
}

func startingResult(subject string, since *timestamppb.Timestamp) checkResult {
	return checkResult{
		stateWarning, subject, "its program is still starting, for " + startDuration(since.AsTime()),
		"run this command again in a minute: the first start of an npx server installs its package",
	}
}

// stdioAdvice returns advice about a stdio server that does not respond. It returns "" for other servers.
func stdioAdvice(s *gatewayv1.ServerStatus) string {
	if s.GetTransport() != "stdio" {
		return ""
	}
	if advice := installAdvice(s); advice != "" {
		return advice
	}
	return "set log.level to debug, or start the mesh with --log-level debug, to log what the program writes to standard error"
}

// installAdvice returns advice if the server's last error says that its package could not be installed, and otherwise
// "".
func installAdvice(s *gatewayv1.ServerStatus) string {
	if !strings.HasPrefix(s.GetLastError(), "the installation of ") {
		return ""
	}
	return npmAdvice
}

const npmAdvice = "check that the package and its version exist, and that npm reaches its registry as the gateway's user (`npm view PACKAGE version`), or git its repository (`git ls-remote ADDRESS`); the gateway tries again by itself"

func lastErrorSuffix(s *gatewayv1.ServerStatus) string {
	if s.GetLastError() == "" {
		return ""
	}
	return "; last error: " + s.GetLastError()
}

// countListedTools returns the number of tools on the first page of the list that a token's holder gets from a server.
// If the list has more pages, it also returns a note about them.
func (t *tool) countListedTools(ctx context.Context, f *config.File, server, secret string) (n int, more string, err error) {
	client, err := t.mcpClient(f)
	if err != nil {
		return 0, "", err
	}
	s, err := openSession(ctx, client, t.endpointURL(f, server), secret)
	if err != nil {
		return 0, "", err
	}
	defer s.close(ctx)
	result, err := s.request(ctx, "tools/list", struct{}{})
	if err != nil {
		return 0, "", err
	}
	var list struct {
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
		Next string `json:"nextCursor"`
	}
	if err := json.Unmarshal(result, &list); err != nil {
		return 0, "", fmt.Errorf("read the list: %w", err)
	}
	if list.Next != "" {
		more = ", and there are more"
	}
	for _, tool := range list.Tools {
		if tool.Name != waitTool {
			n++
		}
	}
	return n, more, nil
}

// printCheckResults prints all results, worst first. It returns an error if one of them is a problem.
func (t *tool) printCheckResults(all []checkResult) error {
	order := []string{stateProblem, stateWarning, stateOK}
	slices.SortStableFunc(all, func(a, b checkResult) int {
		return cmp.Compare(slices.Index(order, a.State), slices.Index(order, b.State))
	})
	if t.json() {
		if err := t.printJSON(all); err != nil {
			return err
		}
	} else {
		var rows [][]string
		for _, f := range all {
			if f.Advice != "" {
				f.Result += " -> " + f.Advice
			}
			rows = append(rows, []string{f.State, f.Subject, f.Result})
		}
		if err := t.table([]string{"STATE", "OF", "FOUND"}, rows); err != nil {
			return err
		}
	}
	if all[0].State == stateProblem {
		return errSilent
	}
	return nil
}
