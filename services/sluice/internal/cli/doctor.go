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
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

const (
	// agentTokenEnv is the environment variable with the agent's token, which doctor needs in addition to the operator's.
	agentTokenEnv = "SLUICE_AGENT_TOKEN" //nolint:gosec // a name, not a token
	// waitTool is the gateway's own tool, which every server may list.
	waitTool = "sluice_approval_wait"
	// doctorTimeout limits the whole command, and serverTimeout the requests to one server. maxExamined is how many
	// servers are examined concurrently.
	doctorTimeout = 5 * time.Minute
	serverTimeout = 10 * time.Second
	maxExamined   = 8
	// expiresSoon is how long before its expiry a certificate gets a warning.
	expiresSoon = 14 * 24 * time.Hour
)

// States of a symptom, from the worst to the best.
const (
	stateProblem = "problem"
	stateWarning = "warning"
	stateOK      = "ok"
)

// symptom is the result of one check.
type symptom struct {
	State string `json:"state"`
	// Of names what was checked, such as a server.
	Of    string `json:"of"`
	Found string `json:"found"`
	// Do says what a person should do; may be empty.
	Do string `json:"do,omitzero"`
}

func (t *tool) doctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Find problems of the mesh and its servers, and say what to do",
		Long: `Check the configuration, its policies and certificates, the roles of the running mesh,
the state of each server at the gateway, and the list of tools that the agent gets from
each server. The command changes nothing and calls no tool. The agent is the holder of
the generated token, or of the token in SLUICE_AGENT_TOKEN.

The command exits with 1 if it finds a problem. It exits with 0 if it finds only warnings.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := t.load()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), doctorTimeout)
			defer cancel()
			return t.printSymptoms(t.examine(ctx, f))
		},
	}
}

// examine makes all checks, and continues after problems.
func (t *tool) examine(ctx context.Context, f *config.File) []symptom {
	h := t.askAll(ctx, f)
	out := append(t.examineFile(f, t.inventoryOf(ctx, f, h)), examineCertificates(f, time.Now())...)
	out = append(out, t.examineMesh(h)...)
	if h.silence == nil {
		out = append(out, t.examineServers(ctx, f, h.gateway.GetServers())...)
		for _, name := range slices.Sorted(maps.Keys(h.waiting)) {
			if n := h.waiting[name]; n > 0 {
				out = append(out, symptom{stateWarning, "tools of " + name, waitingText(n), t.command("catalog diff "+name) + " shows what has changed, and the command that accepts it"})
			}
		}
	}
	return out
}

// inventoryOf returns the tools of each server. It reads them from the running mesh, or, if the mesh does not answer, from
// the data folder.
func (t *tool) inventoryOf(ctx context.Context, f *config.File, h heard) map[string][]string {
	out := inventoryOf(ctx, f)
	if h.silence != nil {
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
	listed := make(map[string][]string)
	for _, one := range tools {
		if one.GetListedNow() {
			listed[one.GetServer()] = append(listed[one.GetServer()], one.GetName())
		}
	}
	for name := range out {
		out[name] = listed[name] // nil if the mesh has no list of the server, or the list is empty
	}
	return out
}

// examineFile checks the configuration as `config check` does.
func (t *tool) examineFile(f *config.File, inventory map[string][]string) (out []symptom) {
	of := cmp.Or(f.Name(), "configuration")
	warnings, err := resolveAll(f, inventory)
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			out = append(out, symptom{stateProblem, of, line, "correct it, and check again with " + t.command("config check")})
		}
	}
	for _, text := range append(f.Warnings(), warnings...) {
		out = append(out, symptom{State: stateWarning, Of: of, Found: text})
	}
	if len(out) == 0 {
		out = append(out, symptom{State: stateOK, Of: of, Found: "it loads, with its secrets and policies"})
	}
	return out
}

// examineCertificates checks the certificates of the roles that are on this machine.
func examineCertificates(f *config.File, now time.Time) (out []symptom) {
	if f.TLS.Dir == "" {
		return nil
	}
	for _, role := range roles {
		name := authn.RoleName(role)
		file := filepath.Join(f.Path(f.TLS.Dir), name+".pem")
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) && f.HasSeparateRoles() {
			continue // it is on another machine
		}
		of := "certificate of " + name
		id, _, err := pki.Load(f.Path(f.TLS.Dir), role)
		if err != nil {
			out = append(out, symptom{stateProblem, of, err.Error(), "create certificates with `sluice certs`"})
			continue
		}
		out = append(out, expiry(of, id.Cert.Leaf, now))
	}
	return out
}

// expiry returns the result of the check of a certificate's expiry.
func expiry(of string, leaf *x509.Certificate, now time.Time) symptom {
	ends := leaf.NotAfter.Local().Format(time.DateTime)
	switch left := leaf.NotAfter.Sub(now); {
	case left <= 0:
		return symptom{stateProblem, of, "it expired at " + ends, "create another with `sluice certs`; the role loads it without a restart"}
	case left < expiresSoon:
		return symptom{stateWarning, of, "it expires soon, at " + ends, "create another with `sluice certs`; the role loads it without a restart"}
	default:
		return symptom{State: stateOK, Of: of, Found: "it is valid until " + ends}
	}
}

// examineMesh checks the state that the roles report.
func (t *tool) examineMesh(h heard) (out []symptom) {
	if h.silence != nil {
		out = append(out, symptom{State: stateProblem, Of: "mesh", Found: h.silence.Error()}) // the error says what to do
	}
	for _, r := range h.roles {
		if serving := healthv1.HealthCheckResponse_SERVING.String(); r.Error != "" || r.Status != serving {
			out = append(out, symptom{stateProblem, "role " + r.Role, strings.TrimSpace(r.Status + " " + r.Error), "read the log of the role, which says why"})
		}
	}
	g := h.gateway
	for _, why := range g.GetNotReady() {
		out = append(out, symptom{stateProblem, "mesh", why, "all calls are refused until this is corrected"})
	}
	for _, why := range g.GetDegraded() {
		out = append(out, symptom{stateWarning, "mesh", why, "calls that need this part of the mesh are refused meanwhile"})
	}
	for _, why := range toCheck(g.GetJournal().GetCheck()).Broken {
		out = append(out, symptom{stateProblem, "journal", why, "see " + t.command("journal verify")})
	}
	for _, why := range h.rejected {
		out = append(out, symptom{stateProblem, "policy", why, "correct the file; until then the previous revision stays in force"})
	}
	if h.silence == nil && len(out) == 0 {
		out = append(out, symptom{State: stateOK, Of: "mesh", Found: fmt.Sprintf("%s is ready, under policy %.12s", g.GetVersion(), g.GetPolicyRevision())})
	}
	return out
}

// examineServers checks the state of each server at the gateway, and the list of tools that the agent gets from it.
func (t *tool) examineServers(ctx context.Context, f *config.File, servers []*gatewayv1.ServerStatus) []symptom {
	secret := agentSecret(f)
	var out []symptom
	if secret == "" {
		out = append(out, symptom{stateWarning, "agent", "the agent's lists of tools were not checked, because its token is not in " + tokenFile(f, agentToken), "set " + agentTokenEnv + " to the token"})
	}
	found := make([]symptom, len(servers))
	places, all := make(chan struct{}, maxExamined), sync.WaitGroup{}
	for i, s := range servers {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			found[i] = t.examineServer(ctx, f, s, secret)
		})
	}
	all.Wait()
	for i, s := range servers {
		out = append(append(out, found[i]), t.listSymptoms(s)...)
		if notice := s.GetProgramNotice(); notice != "" {
			out = append(out, symptom{stateWarning, "program of " + s.GetName(), safetext.Line(notice), npmAdvice})
		}
	}
	return append(out, examineSandboxes(servers)...)
}

// examineSandboxes returns what the kernel does not enforce for stdio servers. Servers with equal results share a symptom.
func examineSandboxes(servers []*gatewayv1.ServerStatus) (out []symptom) {
	boxes := make(map[string]sandbox.Report)
	for _, s := range servers {
		if box := s.GetSandbox(); len(box.GetNotHeld()) > 0 {
			boxes[s.GetName()] = sandbox.Report{By: box.GetBy(), Enforced: box.GetHeld(), NotEnforced: box.GetNotHeld(), Why: box.GetWhy()}
		}
	}
	for _, alike := range sandbox.GroupByReport(boxes) {
		text := "not held: " + strings.Join(alike.Report.NotEnforced, ", ")
		if alike.Report.Why != "" {
			text += "; " + alike.Report.Why
		}
		out = append(out, symptom{stateWarning, "sandbox of " + strings.Join(alike.Names, ", "), text, alike.Report.Advice()})
	}
	return out
}

// agentSecret returns the agent's token from SLUICE_AGENT_TOKEN or from the data folder, or "".
func agentSecret(f *config.File) string {
	if text, ok := app.Env(agentTokenEnv); ok {
		return strings.TrimSpace(text)
	}
	raw, err := os.ReadFile(tokenFile(f, agentToken))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// examineServer checks one server. secret is the agent's token. If it is not empty, examineServer also checks the list of
// tools that the agent gets.
func (t *tool) examineServer(ctx context.Context, f *config.File, s *gatewayv1.ServerStatus, secret string) symptom {
	of := "server " + s.GetName()
	if until := s.GetRestsUntil(); until != nil {
		return symptom{stateProblem, of, "it could not be reached several times in a row: " + s.GetLastError(), "check that the server is up and that its address is right; the gateway tries again by itself"}
	}
	if secret != "" {
		return t.examineAsAgent(ctx, f, s, secret)
	}
	if since := s.GetStartingSince(); since != nil {
		return starting(of, since)
	}
	if s.GetLastError() != "" {
		return symptom{stateWarning, of, "its last request had no usable answer: " + s.GetLastError(), notInstalled(s)}
	}
	return symptom{State: stateOK, Of: of, Found: "no problem is known"}
}

// examineAsAgent checks the list of tools that the agent gets from a server. A server that returns no list is a problem,
// unless its program is still starting.
func (t *tool) examineAsAgent(ctx context.Context, f *config.File, s *gatewayv1.ServerStatus, secret string) symptom {
	of := "server " + s.GetName()
	listing, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	n, more, err := t.listAs(listing, f, s.GetName(), secret)
	if err != nil {
		s = t.statusNow(ctx, f, s)
		if since := s.GetStartingSince(); since != nil && s.GetLastError() == "" { // otherwise its last start has failed
			return starting(of, since)
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return symptom{stateProblem, of, fmt.Sprintf("it gave no answer within %v", serverTimeout) + lastError(s), wayOut(s)}
	case err != nil && !isAbsent(err):
		return symptom{stateProblem, of, err.Error() + lastError(s), wayOut(s)}
	case n == 0 && more == "":
		return symptom{stateWarning, of, "the agent sees no tool of this server", t.command("policy explain") + " says why; " + t.command("policy suggest") + " writes a policy for the server"}
	default:
		return symptom{State: stateOK, Of: of, Found: fmt.Sprintf("the agent sees %d tools", n) + more + lastError(s)}
	}
}

// statusNow returns the current state of a server, or before if the gateway does not answer.
func (t *tool) statusNow(ctx context.Context, f *config.File, before *gatewayv1.ServerStatus) *gatewayv1.ServerStatus {
	own := *t // other goroutines send requests at the same time
	ctx, cancel := ask(ctx)
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

func starting(of string, since *timestamppb.Timestamp) symptom {
	return symptom{
		stateWarning, of, "its program is still starting, for " + startingFor(since.AsTime()),
		"run this command again in a minute: the first start of an npx server installs its package",
	}
}

// wayOut returns what to do about a stdio server that does not answer. It returns "" for other servers.
func wayOut(s *gatewayv1.ServerStatus) string {
	if s.GetTransport() != "stdio" {
		return ""
	}
	if advice := notInstalled(s); advice != "" {
		return advice
	}
	return "set log.level to debug, or start the mesh with --log-level debug, to log what the program writes to standard error"
}

// notInstalled returns what to do if the last error is that the server's package could not be installed; otherwise "".
func notInstalled(s *gatewayv1.ServerStatus) string {
	if !strings.HasPrefix(s.GetLastError(), "the installation of ") {
		return ""
	}
	return npmAdvice
}

const npmAdvice = "check that the package and its version exist, and that npm reaches its registry as the gateway's user (`npm view PACKAGE version`); the gateway tries again by itself"

func lastError(s *gatewayv1.ServerStatus) string {
	if s.GetLastError() == "" {
		return ""
	}
	return "; last error: " + s.GetLastError()
}

// listAs returns how many tools the holder of a token gets on the first page of a server's list. more is a note if the
// list has more pages.
func (t *tool) listAs(ctx context.Context, f *config.File, server, secret string) (n int, more string, err error) {
	client, err := t.edgeClient(f)
	if err != nil {
		return 0, "", err
	}
	s, err := openSession(ctx, client, t.edgeURL(f, server), secret)
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

// printSymptoms prints all symptoms, the worst first. It returns an error if one of them is a problem.
func (t *tool) printSymptoms(all []symptom) error {
	order := []string{stateProblem, stateWarning, stateOK}
	slices.SortStableFunc(all, func(a, b symptom) int {
		return cmp.Compare(slices.Index(order, a.State), slices.Index(order, b.State))
	})
	if t.json() {
		if err := t.printJSON(all); err != nil {
			return err
		}
	} else {
		var rows [][]string
		for _, f := range all {
			if f.Do != "" {
				f.Found += " -> " + f.Do
			}
			rows = append(rows, []string{f.State, f.Of, f.Found})
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
