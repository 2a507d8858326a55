package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// statusTimeout is the timeout for all requests in `status`. With it, the command exits within two seconds even if a
// service hangs.
const statusTimeout = 1500 * time.Millisecond

// roles lists the mesh services in the order of the output, gateway first.
var roles = gatewayFirst()

func gatewayFirst() []authv1.Role {
	all := authn.Roles()
	return append(all[len(all)-1:], all[:len(all)-1]...)
}

type roleStatus struct {
	Role   string `json:"role"`
	Status string `json:"status"`
	Error  string `json:"error,omitzero"`
}

func (t *tool) status() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the state of the mesh and its servers",
		Long: `Show the state of each service, of the policy and the journal, and of each server with its
sandbox. The command exits with 1 if the mesh is not ready.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			f, err := t.load()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), statusTimeout)
			defer cancel()
			h := t.queryRoles(ctx, f)
			h.onDemand, h.users = t.onDemandText(f), t.clientsOfServers(f)
			return t.printStatus(h)
		},
	}
}

type roleAnswers struct {
	gateway *gatewayv1.GetStatusResponse
	// gatewayErr is the error from the gateway, or nil if the gateway responded.
	gatewayErr error
	roles      []roleStatus
	// rejected contains the reasons, one per line, why newer policy documents did not replace the active documents.
	rejected []string
	// documents describes the stored policy documents. It is nil if the policies come from files.
	documents *policyDocuments
	// observed describes the parts of the policy that are in observe mode and therefore not enforced, one per line.
	// observedParts contains the first of these parts.
	observed      []string
	observedParts []*policyv1.ObservedPolicy
	// pending contains the number of pending definitions of each server. Servers without pending definitions may be
	// missing.
	pending map[string]int
	// stops contains the stops in force, with which operators refuse calls.
	stops []*policyv1.Stop
	// ending contains the tokens that expire soon or have recently expired.
	ending []tokenRecord
	// onDemand describes the mesh if a client has started it, and is otherwise empty.
	onDemand string
	// users contains the clients of each server in the person's own mesh.
	users map[string][]string
}

// queryRoles sends requests to all mesh services concurrently, so that a service that hangs does not delay the others.
func (t *tool) queryRoles(ctx context.Context, f *config.File) roleAnswers {
	h := roleAnswers{roles: make([]roleStatus, len(roles))}
	var group errgroup.Group
	ask := func(question func(t *tool)) {
		own := *t // a copy, because each goroutine records the target of its request
		group.Go(func() error {
			question(&own)
			return nil
		})
	}
	ask(func(t *tool) { h.gateway, h.gatewayErr = t.gatewayStatus(ctx, f) })
	ask(func(t *tool) {
		active := t.activeRevision(ctx, f)
		h.rejected, h.observed = rejectedLines(active), describeObserved(active.GetObserved(), int(active.GetObservedCount()))
		h.observedParts, h.documents = active.GetObserved(), newPolicyDocuments(active)
	})
	ask(func(t *tool) { h.pending = t.pendingDefinitions(ctx, f) })
	ask(func(t *tool) { h.stops = t.stopsInForce(ctx, f) })
	ask(func(t *tool) { h.ending = t.endingTokens(ctx, f) })
	for i, role := range roles {
		ask(func(t *tool) { h.roles[i] = t.health(ctx, f, role) })
	}
	_ = group.Wait() // the errors are in h
	silent := !slices.ContainsFunc(h.roles, func(r roleStatus) bool { return r.Error == "" })
	if h.gatewayErr != nil && (silent || !f.HasSeparateRoles()) { // all roles have the same error, or run in the same process
		h.roles = nil
	}
	return h
}

func (t *tool) gatewayStatus(ctx context.Context, f *config.File) (*gatewayv1.GetStatusResponse, error) {
	conn, err := t.dial(f, authv1.Role_ROLE_GATEWAY)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // only the answer matters
	resp, err := gatewayv1.NewGatewayServiceClient(conn).GetStatus(ctx, &gatewayv1.GetStatusRequest{})
	if err != nil {
		return nil, t.explainError(err)
	}
	return resp, nil
}

// activeRevision returns the active policy revision, or nil if the policy service does not respond.
func (t *tool) activeRevision(ctx context.Context, f *config.File) *policyv1.Revision {
	conn, err := t.dial(f, authv1.Role_ROLE_POLICY)
	if err != nil {
		return nil
	}
	defer conn.Close() //nolint:errcheck // only the answer matters
	stream, err := policyv1.NewPolicyServiceClient(conn).WatchRevision(ctx, &policyv1.WatchRevisionRequest{})
	if err != nil {
		return nil
	}
	resp, err := stream.Recv()
	if err != nil {
		return nil
	}
	return resp.GetRevision()
}

// rejectedLines returns the reasons, one per line, why newer policy documents did not replace the documents of the
// active revision. The revision may be nil.
func rejectedLines(active *policyv1.Revision) []string {
	var lines []string
	for _, found := range active.GetRejected() {
		lines = append(lines, strings.Split(findingPosition(found)+findingText(found), "\n")...)
	}
	return lines
}

// pendingDefinitions returns the number of definitions that wait for a person's decision, by server. It returns nil if
// the policy service does not respond.
func (t *tool) pendingDefinitions(ctx context.Context, f *config.File) map[string]int {
	conn, err := t.dial(f, authv1.Role_ROLE_POLICY)
	if err != nil {
		return nil
	}
	defer conn.Close() //nolint:errcheck // only the answer matters
	resp, err := policyv1.NewCatalogServiceClient(conn).ListServers(ctx, &policyv1.ListServersRequest{PageSize: maxCatalogPage})
	if err != nil {
		return nil
	}
	out := make(map[string]int)
	for _, s := range resp.GetServers() {
		out[s.GetName()] = int(s.GetWaiting())
	}
	return out
}

func (t *tool) health(ctx context.Context, f *config.File, role authv1.Role) roleStatus {
	out := roleStatus{Role: authn.RoleName(role), Status: "UNKNOWN"}
	conn, err := t.dial(f, role)
	if err != nil {
		out.Error = err.Error()
		return out
	}
	defer conn.Close() //nolint:errcheck // only the answer matters
	resp, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: out.Role})
	if err != nil {
		out.Error = t.explainError(err).Error()
		return out
	}
	out.Status = resp.GetStatus().String()
	return out
}

type meshStatus struct {
	Stops          []stopRecord  `json:"stops,omitempty"`
	EndingTokens   []tokenRecord `json:"endingTokens,omitempty"`
	Version        string        `json:"version"`
	Ready          bool          `json:"ready"`
	OnDemand       string        `json:"onDemand,omitempty"`
	NotReady       []string      `json:"notReady,omitempty"`
	Degraded       []string      `json:"degraded,omitempty"`
	PolicyRevision string        `json:"policyRevision"`
	// PolicyDocuments is nil if the policies come from files.
	PolicyDocuments *policyDocuments `json:"policyDocuments,omitempty"`
	PolicyRejected  []string         `json:"policyRejected,omitempty"`
	PolicyObserved  []string         `json:"policyObserved,omitempty"`
	JournalHealthy  bool             `json:"journalHealthy"`
	JournalHead     *journal.Head    `json:"journalHead,omitempty"`
	JournalCheck    journalCheck     `json:"journalCheck"`
	JournalRoom     journalRoom      `json:"journalRoom"`
	// RecordedArguments is nil if no arguments are stored.
	RecordedArguments *recordedArguments `json:"recordedArguments,omitempty"`
	OwnTenantOnly     bool               `json:"ownTenantOnly,omitzero"`
	SilentClients     []silentClient     `json:"silentClients,omitempty"`
	Sessions          int32              `json:"sessions"`
	Roles             []roleStatus       `json:"roles"`
	Servers           []serverStatus     `json:"servers"`
}

type serverStatus struct {
	Name      string `json:"name"`
	Transport string `json:"transport"`
	InFlight  int32  `json:"inFlight"`
	LastError string `json:"lastError,omitzero"`
	// RestsUntil is the time until which the gateway sends no requests to the server. It is zero if the gateway may send
	// requests now.
	RestsUntil time.Time `json:"restsUntil,omitzero"`
	// StartingSince is the time when the server's program was started. It is zero unless the program is still starting.
	StartingSince time.Time `json:"startingSince,omitzero"`
	Revisions     []string  `json:"revisions,omitempty"`
	// ProgramNotice is a notice about the server's program that does not affect calls. It may be empty.
	ProgramNotice string `json:"programNotice,omitempty"`
	// Clients contains the names of the clients that use the server. It is set only for the person's own mesh.
	Clients []string `json:"clients,omitempty"`
	// ListFaults contains the reasons why parts of the server's lists are hidden from clients.
	ListFaults []listFault `json:"listFaults,omitempty"`
	// Pending is the number of pending definitions of the server's tools.
	Pending int `json:"waiting,omitzero"`
	// Sandbox contains the restrictions that the kernel enforces for the server's program. It is nil if the gateway does
	// not start the server.
	Sandbox *sandbox.Report `json:"sandbox,omitempty"`
}

// String describes the state of a server in one line.
func (s serverStatus) String() string {
	line := fmt.Sprintf("%s, %d in flight", s.Transport, s.InFlight)
	if len(s.Clients) > 0 {
		line += ", used by " + enumerated(s.Clients)
	}
	if len(s.Revisions) > 0 {
		line += ", MCP " + strings.Join(s.Revisions, " and ")
	}
	if !s.RestsUntil.IsZero() {
		line += "; could not be reached several times in a row, and is tried again at " + s.RestsUntil.Format(time.TimeOnly)
	}
	if !s.StartingSince.IsZero() {
		line += "; still starting, for " + startDuration(s.StartingSince)
	}
	if s.ProgramNotice != "" {
		line += "; " + safetext.Line(s.ProgramNotice)
	}
	if s.LastError != "" {
		line += "; last error: " + s.LastError
	}
	return strings.Join(append([]string{line}, faultLines(s.ListFaults)...), "; ")
}

func pendingText(n int) string {
	return fmt.Sprintf("%d definitions of tools are new or have changed; the tools can't be called until you accept them", n)
}

func startDuration(since time.Time) string {
	return max(0, time.Since(since)).Truncate(time.Second).String()
}

// printStatus prints the responses of the mesh services. If the gateway did not respond, printStatus prints the results
// of the health checks and returns the gateway's error.
func (t *tool) printStatus(h roleAnswers) error {
	if h.gatewayErr != nil && len(h.roles) == 0 {
		return h.gatewayErr
	}
	g := h.gateway
	all := meshStatus{
		Stops: stopRecords(h.stops), EndingTokens: h.ending, Version: g.GetVersion(), OnDemand: h.onDemand, Ready: g.GetReady(), NotReady: g.GetNotReady(), Degraded: g.GetDegraded(),
		PolicyRevision: g.GetPolicyRevision(), PolicyDocuments: h.documents, PolicyRejected: h.rejected, PolicyObserved: h.observed,
		JournalHealthy: g.GetJournalHealthy(), JournalHead: journal.HeadFromProto(g.GetJournal().GetHead()), JournalCheck: newJournalCheck(g.GetJournal().GetCheck()),
		Sessions: g.GetSessions(), Roles: h.roles, JournalRoom: newJournalRoom(g.GetJournal()), RecordedArguments: newRecordedArguments(g.GetRecordedArguments()), OwnTenantOnly: g.GetOwnTenantOnly(),
		SilentClients: silentClients(g),
	}
	for _, s := range g.GetServers() {
		line := serverStatus{Name: s.GetName(), Transport: s.GetTransport(), InFlight: s.GetInFlight(), LastError: s.GetLastError(), ProgramNotice: s.GetProgramNotice(), Revisions: s.GetRevisions(), ListFaults: faultsOf(s), Pending: h.pending[s.GetName()], Clients: h.users[s.GetName()]}
		if until := s.GetRestsUntil(); until != nil {
			line.RestsUntil = until.AsTime().Local()
		}
		if since := s.GetStartingSince(); since != nil {
			line.StartingSince = since.AsTime().Local()
		}
		if box := s.GetSandbox(); box != nil {
			line.Sandbox = &sandbox.Report{By: box.GetBy(), Enforced: box.GetHeld(), NotEnforced: box.GetNotHeld(), Why: box.GetWhy()}
		}
		all.Servers = append(all.Servers, line)
	}
	if err := t.writeStatus(all); err != nil {
		return err
	}
	switch {
	case h.gatewayErr != nil:
		return h.gatewayErr
	case !all.Ready:
		return errSilent
	}
	return nil
}

func (t *tool) writeStatus(all meshStatus) error {
	if t.json() {
		return t.printJSON(all)
	}
	var rows [][]string
	for _, s := range all.Stops {
		rows = append(rows, []string{"stopped", s.calls() + ", " + s.by()})
	}
	if all.Version != "" { // the gateway answered
		rows = append(rows, gatewayRows(all)...)
	}
	for _, why := range all.JournalCheck.Broken {
		rows = append(rows, []string{"journal is broken", why})
	}
	for _, why := range all.PolicyRejected {
		rows = append(rows, []string{"rejected", why})
	}
	for _, line := range all.PolicyObserved {
		rows = append(rows, []string{"observed", line})
	}
	for _, one := range all.EndingTokens {
		rows = append(rows, []string{"token " + one.ID, one.endText(time.Now())})
	}
	for _, c := range all.SilentClients {
		rows = append(rows, []string{"no forms", c.String()})
	}
	for _, why := range all.NotReady {
		rows = append(rows, []string{"not ready", why})
	}
	for _, why := range all.Degraded {
		rows = append(rows, []string{"degraded", why})
	}
	for _, r := range all.Roles {
		rows = append(rows, []string{"role " + r.Role, r.Status + " " + r.Error})
	}
	return t.table([]string{"WHAT", "STATE"}, append(rows, t.serverRows(all)...))
}

func gatewayRows(all meshStatus) [][]string {
	rows := [][]string{
		{"version", all.Version},
		{"ready", strconv.FormatBool(all.Ready)},
		{"policy", orDash(all.PolicyRevision)},
	}
	if all.PolicyDocuments != nil {
		rows = append(rows, []string{"documents", all.PolicyDocuments.String()})
	}
	rows = append(rows, [][]string{
		{"journal", journalState(all.JournalHealthy)},
		{"sessions", strconv.Itoa(int(all.Sessions))},
	}...)
	if all.OnDemand != "" {
		rows = append(rows, []string{"on demand", all.OnDemand})
	}
	if all.OwnTenantOnly {
		return append(rows, []string{"not shown", "servers, records and other tenants' sessions: people of the tenant \"default\" see them"})
	}
	rows = append(rows, []string{"journal head", formatHead(all.JournalHead)}, []string{"journal room", all.JournalRoom.String()})
	if all.RecordedArguments != nil {
		rows = append(rows, []string{"arguments", all.RecordedArguments.String()})
	}
	return append(rows, []string{"old records", all.JournalCheck.String()})
}

func (t *tool) serverRows(all meshStatus) (rows [][]string) {
	boxes := make(map[string]sandbox.Report)
	for _, s := range all.Servers {
		rows = append(rows, []string{"server " + s.Name, s.String()})
		if s.Pending > 0 {
			rows = append(rows, []string{"changed " + s.Name, pendingText(s.Pending) + ": " + t.command("catalog diff "+s.Name) + " shows them"})
		}
		if s.Sandbox != nil {
			boxes[s.Name] = *s.Sandbox
		}
	}
	for _, alike := range sandbox.GroupByReport(boxes) {
		rows = append(rows, []string{"sandbox " + strings.Join(alike.Names, ", "), alike.Report.String()})
	}
	return rows
}

func journalState(ok bool) string {
	if ok {
		return "writes records"
	}
	return "can't write records, so calls are refused"
}
