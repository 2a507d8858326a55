package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
)

// selectorFlags contains the flags that select calls.
type selectorFlags struct {
	all                   bool
	agent, server, tenant string
}

func (f *selectorFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.BoolVar(&f.all, "all", false, "all calls")
	flags.StringVar(&f.agent, "agent", "", "the calls of an `AGENT`: its name, its subject, or the id of an agent of the mesh")
	flags.StringVar(&f.server, "server", "", "the calls to a `SERVER`")
	flags.StringVar(&f.tenant, "tenant", "", "the calls of a `TENANT`")
	for _, name := range []string{"agent", "server", "tenant"} {
		c.MarkFlagsMutuallyExclusive("all", name)
	}
}

// selector returns a selector for the selected calls, or nil if no flag is set.
func (f *selectorFlags) selector() *policyv1.StopSelector {
	if *f == (selectorFlags{}) {
		return nil
	}
	return &policyv1.StopSelector{All: f.all, Agent: f.agent, Server: f.server, Tenant: f.tenant}
}

// stopRecord is a stop in the JSON output.
type stopRecord struct {
	All            bool      `json:"all,omitzero"`
	Agent          string    `json:"agent,omitzero"`
	Server         string    `json:"server,omitzero"`
	Tenant         string    `json:"tenant,omitzero"`
	Reason         string    `json:"reason"`
	OperatorTenant string    `json:"operatorTenant"`
	Operator       string    `json:"operator,omitzero"`
	Began          time.Time `json:"began"`
	Ended          time.Time `json:"ended,omitzero"`
	ResumedBy      string    `json:"resumedBy,omitzero"`
}

func newStopRecord(s *policyv1.Stop) stopRecord {
	selector := s.GetSelector()
	out := stopRecord{
		All: selector.GetAll(), Agent: selector.GetAgent(), Server: selector.GetServer(), Tenant: selector.GetTenant(), Reason: s.GetReason(),
		OperatorTenant: s.GetOperatorTenant(), Operator: s.GetOperator(), Began: s.GetBegan().AsTime().Local(), ResumedBy: s.GetResumedBy(),
	}
	if s.GetEnded() != nil {
		out.Ended = s.GetEnded().AsTime().Local()
	}
	return out
}

func stopRecords(all []*policyv1.Stop) []stopRecord {
	out := make([]stopRecord, len(all))
	for i, s := range all {
		out[i] = newStopRecord(s)
	}
	return out
}

// calls describes the calls that the stop refuses.
func (s stopRecord) calls() string {
	out := []string{"all calls"}
	for _, one := range []struct{ word, value string }{{"of agent", s.Agent}, {"of tenant", s.Tenant}, {"to server", s.Server}} {
		if one.value != "" {
			out = append(out, one.word, one.value)
		}
	}
	return strings.Join(out, " ")
}

// flags returns the flags that select the calls that the stop refuses.
func (s stopRecord) flags() string {
	var out []string
	for _, one := range []struct{ flag, value string }{{"--agent", s.Agent}, {"--server", s.Server}, {"--tenant", s.Tenant}} {
		if one.value != "" {
			out = append(out, one.flag, shellWords(one.value))
		}
	}
	if len(out) == 0 {
		return "--all"
	}
	return strings.Join(out, " ")
}

// by describes who stopped the calls, when, and why.
func (s stopRecord) by() string {
	who := "an operator of tenant " + s.OperatorTenant
	if s.Operator != "" {
		who = s.Operator
	}
	return fmt.Sprintf("by %s at %s: %s", who, s.Began.Format(time.DateTime), s.Reason)
}

func (t *tool) stop() *cobra.Command {
	f := new(selectorFlags)
	var reason string
	var list, history bool
	c := &cobra.Command{
		Use:   "stop (--all | --agent AGENT | --server SERVER | --tenant TENANT) -m REASON",
		Short: "Stop the calls of an agent or a tenant, the calls to a server, or all calls",
		Long: `Refuse calls until ` + "`resume`" + ` ends the stop, also after a restart of the mesh. When the command
has ended, no gateway starts these calls. Calls that were already sent end normally. --agent,
--server and --tenant together select calls with all of these properties. To end the mesh
itself, end the process of ` + "`up`" + `.`,
		Example: "  " + t.self + " stop --agent assistant -m \"it sends mail to strangers\"",
		Args:    args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if list || history {
				if f.selector() != nil || reason != "" {
					return usageError{errors.New("--list and --history print stops: set them without selectors and without --reason")}
				}
				return t.withPolicy(c.Context(), func(ctx context.Context, _ *config.File, client policyv1.PolicyServiceClient) error {
					return t.listStops(ctx, client, history)
				})
			}
			if f.selector() == nil {
				return usageError{errors.New("select the calls to stop: set --all, --agent, --server or --tenant")}
			}
			if strings.TrimSpace(reason) == "" {
				return usageError{errors.New("a reason is required, because the callers get it: set -m")}
			}
			return t.withPolicy(c.Context(), func(ctx context.Context, file *config.File, client policyv1.PolicyServiceClient) error {
				return t.stopCalls(ctx, file, client, &policyv1.StopCallsRequest{Selector: f.selector(), Reason: reason})
			})
		},
	}
	f.add(c)
	c.Flags().StringVarP(&reason, "reason", "m", "", "the reason, which the callers get (required)")
	c.Flags().BoolVar(&list, "list", false, "print the stops in force instead")
	c.Flags().BoolVar(&history, "history", false, "print the ended stops instead, the newest first")
	return c
}

func (t *tool) resume() *cobra.Command {
	f := new(selectorFlags)
	c := &cobra.Command{
		Use:   "resume (--all | --agent AGENT | --server SERVER | --tenant TENANT)",
		Short: "End a stop, so that policy decides on these calls again",
		Long: `End the stop that was made with the same flags. Other stops stay in force (` + "`stop --list`" + `), even
if they refuse some of the same calls. --all ends only the stop of all calls.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if f.selector() == nil {
				return usageError{errors.New("select the stop to end with the flags with which it was made: " + t.command("stop --list") + " prints them")}
			}
			return t.withPolicy(c.Context(), func(ctx context.Context, _ *config.File, client policyv1.PolicyServiceClient) error {
				return t.resumeCalls(ctx, client, f.selector())
			})
		},
	}
	f.add(c)
	return c
}

// withPolicy calls do with a client for the policy service.
func (t *tool) withPolicy(ctx context.Context, do func(ctx context.Context, f *config.File, client policyv1.PolicyServiceClient) error) error {
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
	return do(ctx, f, policyv1.NewPolicyServiceClient(conn))
}

type stopResult struct {
	Stop           stopRecord `json:"stop"`
	AlreadyStopped bool       `json:"alreadyStopped"`
	Revision       string     `json:"revision"`
}

func (t *tool) stopCalls(ctx context.Context, f *config.File, client policyv1.PolicyServiceClient, req *policyv1.StopCallsRequest) error {
	resp, err := client.StopCalls(ctx, req)
	if err != nil {
		return t.explainError(err)
	}
	stop := newStopRecord(resp.GetStop())
	if t.json() {
		return t.printJSON(stopResult{Stop: stop, AlreadyStopped: resp.GetAlreadyStopped(), Revision: resp.GetPolicyRevision()})
	}
	if resp.GetAlreadyStopped() {
		t.printf("%s were stopped before, %s", stop.calls(), stop.by())
	} else {
		t.printf("stopped: %s", stop.calls())
	}
	if text := t.inFlight(ctx, f, req.GetSelector()); text != "" {
		t.printf("%s", text)
	}
	t.printf("to resume: %s", t.command("resume "+stop.flags()))
	return nil
}

// inFlight describes the calls that were sent before the stop and have not ended yet. It returns "" if their number is
// not known.
func (t *tool) inFlight(ctx context.Context, f *config.File, selector *policyv1.StopSelector) string {
	if selector.GetAgent() != "" || selector.GetTenant() != "" { // the gateway does not count these separately
		return ""
	}
	own := *t
	status, err := own.gatewayStatus(ctx, f)
	if err != nil || status.GetOwnTenantOnly() {
		return ""
	}
	n := 0
	for _, s := range status.GetServers() {
		if selector.GetServer() == "" || s.GetName() == selector.GetServer() {
			n += int(s.GetInFlight())
		}
	}
	return fmt.Sprintf("calls in flight at this gateway: %d; they end normally", n)
}

func (t *tool) resumeCalls(ctx context.Context, client policyv1.PolicyServiceClient, selector *policyv1.StopSelector) error {
	resp, err := client.ResumeCalls(ctx, &policyv1.ResumeCallsRequest{Selector: selector})
	if err != nil {
		return t.explainError(err)
	}
	rest, err := client.ListStops(ctx, &policyv1.ListStopsRequest{})
	if err != nil {
		return t.explainError(err)
	}
	if t.json() {
		return t.printJSON(map[string]any{"resumed": stopRecords(resp.GetResumed()), "inForce": stopRecords(rest.GetStops()), "revision": resp.GetPolicyRevision()})
	}
	for _, s := range stopRecords(resp.GetResumed()) {
		t.printf("resumed: %s, which were stopped %s", s.calls(), s.by())
	}
	if len(resp.GetResumed()) == 0 {
		t.printf("no stop had these flags, so nothing has changed")
	}
	for _, s := range stopRecords(rest.GetStops()) {
		t.printf("still stopped: %s, %s (%s)", s.calls(), s.by(), t.command("resume "+s.flags()))
	}
	return nil
}

func (t *tool) listStops(ctx context.Context, client policyv1.PolicyServiceClient, ended bool) error {
	resp, err := client.ListStops(ctx, &policyv1.ListStopsRequest{Ended: ended})
	if err != nil {
		return t.explainError(err)
	}
	all := stopRecords(resp.GetStops())
	if t.json() {
		return t.printJSON(all)
	}
	if len(all) == 0 {
		what := "no calls are stopped"
		if ended {
			what = "no stop has ended"
		}
		t.printf("%s", what)
		return nil
	}
	rows := make([][]string, len(all))
	for i, s := range all {
		rows[i] = []string{s.calls(), s.Began.Format(time.DateTime), orDash(s.Operator), orDash(s.OperatorTenant), s.Reason}
		if ended {
			rows[i] = append(rows[i], s.Ended.Format(time.DateTime), orDash(s.ResumedBy))
		}
	}
	head := []string{"STOPPED", "SINCE", "BY", "TENANT", "REASON"}
	if ended {
		head = append(head, "RESUMED", "BY")
	}
	return t.table(head, rows)
}

// stopsInForce returns the stops in force, or nil if the policy service does not respond.
func (t *tool) stopsInForce(ctx context.Context, f *config.File) []*policyv1.Stop {
	conn, err := t.dial(f, authv1.Role_ROLE_POLICY)
	if err != nil {
		return nil
	}
	defer conn.Close() //nolint:errcheck // only the answer matters
	resp, err := policyv1.NewPolicyServiceClient(conn).ListStops(ctx, &policyv1.ListStopsRequest{})
	if err != nil {
		return nil
	}
	return resp.GetStops()
}

// checkStops returns a warning for each stop in force.
func (t *tool) checkStops(stops []*policyv1.Stop) (out []checkResult) {
	for _, s := range stopRecords(stops) {
		out = append(out, checkResult{stateWarning, "stop", s.calls() + " are stopped " + s.by(), t.command("resume "+s.flags()) + " ends the stop"})
	}
	return out
}
