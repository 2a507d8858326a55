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
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
	"github.com/sluice-mesh/sluice/services/internal/viewtext"
)

const (
	// agentTokenEnv names the variable with the agent's token, which doctor needs in addition to the operator's.
	agentTokenEnv = "SLUICE_AGENT_TOKEN" //nolint:gosec // a name, not a token
	// waitTool is the gateway's own tool, which every server may list.
	waitTool = "sluice_approval_wait"
	// doctorTimeout bounds the whole command, and serverTimeout the requests to one server. maxExamined servers are
	// asked at a time.
	doctorTimeout = 5 * time.Minute
	serverTimeout = 10 * time.Second
	maxExamined   = 8
	// expiresSoon is how long before its expiry a certificate gets a warning.
	expiresSoon = 14 * 24 * time.Hour
)

// States of a symptom, the worst first.
const (
	stateProblem = "problem"
	stateWarning = "warning"
	stateOK      = "ok"
)

// symptom is a finding about one thing.
type symptom struct {
	State string `json:"state"`
	// Of is what was examined.
	Of    string `json:"of"`
	Found string `json:"found"`
	// Do is what to do; empty if nothing is to be done.
	Do string `json:"do,omitzero"`
}

func (t *tool) doctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Find problems of the mesh and its servers, and say what to do",
		Long: `Check the configuration, its policies and certificates, the roles of the running mesh,
each server as the gateway knows it, and what the agent would find there. Nothing is
changed, and no tool is called. The agent is the one of the generated token, or of
SLUICE_AGENT_TOKEN.

The command exits with 1 if something must be repaired, but not for warnings.`,
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

// examine examines everything, and continues after problems.
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

// inventoryOf returns the servers and their tools: as the running mesh lists them, otherwise as the data folder knows
// them.
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
		out[name] = listed[name] // nil if the server was not listed yet, or has no tools
	}
	return out
}

// examineFile checks the configuration as `config check` does.
func (t *tool) examineFile(f *config.File, inventory map[string][]string) (out []symptom) {
	of := cmp.Or(f.Name(), "configuration")
	warnings, err := resolveAll(f, inventory)
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			out = append(out, symptom{stateProblem, of, line, "mend it, and look again with " + t.command("config check")})
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
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) && f.Apart() {
			continue // it is on another machine
		}
		of := "certificate of " + name
		id, _, err := pki.Load(f.Path(f.TLS.Dir), role)
		if err != nil {
			out = append(out, symptom{stateProblem, of, err.Error(), "make certificates with `sluice certs`"})
			continue
		}
		out = append(out, expiry(of, id.Cert.Leaf, now))
	}
	return out
}

// expiry returns the symptom of a certificate's expiry.
func expiry(of string, leaf *x509.Certificate, now time.Time) symptom {
	ends := leaf.NotAfter.Local().Format(time.DateTime)
	switch left := leaf.NotAfter.Sub(now); {
	case left <= 0:
		return symptom{stateProblem, of, "it has ended, at " + ends, "make another with `sluice certs`; the role takes it without a restart"}
	case left < expiresSoon:
		return symptom{stateWarning, of, "it ends soon, at " + ends, "make another with `sluice certs`; the role takes it without a restart"}
	default:
		return symptom{State: stateOK, Of: of, Found: "it counts until " + ends}
	}
}

// examineMesh checks the state that the roles report.
func (t *tool) examineMesh(h heard) (out []symptom) {
	if h.silence != nil {
		out = append(out, symptom{State: stateProblem, Of: "mesh", Found: h.silence.Error()}) // the error says what to do
	}
	for _, r := range h.roles {
		if serving := healthv1.HealthCheckResponse_SERVING.String(); r.Error != "" || r.Status != serving {
			out = append(out, symptom{stateProblem, "role " + r.Role, strings.TrimSpace(r.Status + " " + r.Error), "its log says why"})
		}
	}
	g := h.gateway
	for _, why := range g.GetNotReady() {
		out = append(out, symptom{stateProblem, "mesh", why, "no call passes until this is mended"})
	}
	for _, why := range g.GetDegraded() {
		out = append(out, symptom{stateWarning, "mesh", why, "calls that need it are refused meanwhile"})
	}
	for _, why := range toCheck(g.GetJournal().GetCheck()).Broken {
		out = append(out, symptom{stateProblem, "journal", why, "see " + t.command("journal verify")})
	}
	for _, why := range h.rejected {
		out = append(out, symptom{stateProblem, "policy", why, "the revision before stays in force; mend the file"})
	}
	if h.silence == nil && len(out) == 0 {
		out = append(out, symptom{State: stateOK, Of: "mesh", Found: fmt.Sprintf("%s is ready, under policy %.12s", g.GetVersion(), g.GetPolicyRevision())})
	}
	return out
}

// examineServers checks each server, as the gateway knows it and as the agent finds it.
func (t *tool) examineServers(ctx context.Context, f *config.File, servers []*gatewayv1.ServerStatus) []symptom {
	secret := agentSecret(f)
	var out []symptom
	if secret == "" {
		out = append(out, symptom{stateWarning, "agent", "what it would find is not looked at: its token is not at " + tokenFile(f, agentToken), "give it as " + agentTokenEnv})
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
			out = append(out, symptom{stateWarning, "program of " + s.GetName(), viewtext.Line(notice), npmAdvice})
		}
	}
	return append(out, examineSandboxes(servers)...)
}

// examineSandboxes reports what is not enforced for stdio servers, once for all servers with equal results.
func examineSandboxes(servers []*gatewayv1.ServerStatus) (out []symptom) {
	boxes := make(map[string]sandbox.Report)
	for _, s := range servers {
		if box := s.GetSandbox(); len(box.GetNotHeld()) > 0 {
			boxes[s.GetName()] = sandbox.Report{By: box.GetBy(), Held: box.GetHeld(), NotHeld: box.GetNotHeld(), Why: box.GetWhy()}
		}
	}
	for _, alike := range sandbox.Alike(boxes) {
		text := "not held: " + strings.Join(alike.Report.NotHeld, ", ")
		if alike.Report.Why != "" {
			text += "; " + alike.Report.Why
		}
		out = append(out, symptom{stateWarning, "sandbox of " + strings.Join(alike.Names, ", "), text, alike.Report.Advice()})
	}
	return out
}

// agentSecret returns the token of the agent whose view is examined; empty without one.
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

// examineServer checks one server and, with an agent's token, what the agent finds there.
func (t *tool) examineServer(ctx context.Context, f *config.File, s *gatewayv1.ServerStatus, secret string) symptom {
	of := "server " + s.GetName()
	if until := s.GetRestsUntil(); until != nil {
		return symptom{stateProblem, of, "it was not reached many times in a row: " + s.GetLastError(), "is it up, and the address right? It is tried again by itself"}
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
	return symptom{State: stateOK, Of: of, Found: "nothing is known against it"}
}

// examineAsAgent checks what the agent finds at a server. A server without a list is a problem, unless its program is
// still starting.
func (t *tool) examineAsAgent(ctx context.Context, f *config.File, s *gatewayv1.ServerStatus, secret string) symptom {
	of := "server " + s.GetName()
	listing, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	n, more, err := t.listAs(listing, f, s.GetName(), secret)
	if err != nil {
		s = t.statusNow(ctx, f, s)
		if since := s.GetStartingSince(); since != nil {
			return starting(of, since)
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return symptom{stateProblem, of, fmt.Sprintf("it gave no answer within %v", serverTimeout) + lastError(s), wayOut(s)}
	case err != nil && !isAbsent(err):
		return symptom{stateProblem, of, err.Error() + lastError(s), wayOut(s)}
	case n == 0 && more == "":
		return symptom{stateWarning, of, "the agent sees no tool of it", t.command("policy explain") + " says why; " + t.command("policy suggest") + " writes a policy for it"}
	default:
		return symptom{State: stateOK, Of: of, Found: fmt.Sprintf("the agent sees %d tools", n) + more + lastError(s)}
	}
}

// statusNow returns the present state of a server, or the state before if the gateway does not answer.
func (t *tool) statusNow(ctx context.Context, f *config.File, before *gatewayv1.ServerStatus) *gatewayv1.ServerStatus {
	own := *t // others ask at the same time
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
		"look again in a while: the first start of an npx server installs it",
	}
}

// wayOut returns where to find more about a server that does not answer; empty if the cause says everything.
func wayOut(s *gatewayv1.ServerStatus) string {
	if s.GetTransport() != "stdio" {
		return ""
	}
	if advice := notInstalled(s); advice != "" {
		return advice
	}
	return "log.level: debug, or --log-level debug, has the mesh log what the program writes to standard error"
}

// notInstalled returns what to do if the package of a server could not be installed; empty if it was installed.
func notInstalled(s *gatewayv1.ServerStatus) string {
	if !strings.HasPrefix(s.GetLastError(), "the installation of ") {
		return ""
	}
	return npmAdvice
}

const npmAdvice = "see that the package and its version exist and that npm reaches its registry as the gateway's user (`npm view PACKAGE version`); it is tried again by itself"

func lastError(s *gatewayv1.ServerStatus) string {
	if s.GetLastError() == "" {
		return ""
	}
	return "; last error: " + s.GetLastError()
}

// listAs returns how many tools of a server the holder of a token sees on the first page of the list, and a note if
// there are more.
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

// printSymptoms prints all findings, the worst first.
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
