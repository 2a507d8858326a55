package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/arguments"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

const (
	// defaultPage is the number of entries on a page if the request sets no page size.
	defaultPage = 100
	// maxList is the maximum total size, in bytes, of the records in one response.
	maxList = 3 << 20
)

// errPageToken means that the gateway did not issue the page token in a request for this list.
var errPageToken = errors.New("page_token: this list has returned no such token")

var errNoDecision = errors.New("this gateway has no decision with that id: it may be older than the journal, or another gateway's; `sluice decisions tail` lists the newest")

// installationTenant is the tenant that owns the servers. Only people in this tenant can see the servers.
const installationTenant = "default"

// GetStatus implements gatewayv1.GatewayServiceServer. Callers in the installation's tenant receive the servers, the
// journal's counts and the total number of sessions. Other callers receive only the number of sessions in their own
// tenant.
func (s *Service) GetStatus(ctx context.Context, _ *gatewayv1.GetStatusRequest) (*gatewayv1.GetStatusResponse, error) {
	why := s.NotReady()
	resp := &gatewayv1.GetStatusResponse{
		Version:        s.cfg.Version,
		Started:        timestamppb.New(s.started),
		Ready:          len(why) == 0,
		NotReady:       why,
		Degraded:       s.Degraded(),
		PolicyRevision: s.decisions.Revision(),
		JournalHealthy: s.journal.Healthy() == nil,
	}
	if !seesAll(authn.CallerOf(ctx)) {
		resp.OwnTenantOnly = true
		resp.Sessions = int32(len(s.sessions.List(tenantOf(ctx))))
		return resp, nil
	}
	resp.Sessions = int32(s.sessions.Len())
	room := s.journal.Capacity()
	resp.Journal = &gatewayv1.JournalStatus{
		Head: journal.HeadToProto(s.journal.Head()), Check: journal.CheckToProto(s.journal.Check()),
		CallsRoomBytes: room.Bytes, CallsBytes: room.Used,
	}
	if room.Duration > 0 {
		resp.Journal.CallsRoomLasts = durationpb.New(room.Duration)
	}
	resp.RecordedArguments = s.recordedArgumentsStatus()
	resp.Servers = s.serverStatuses(isOperator(authn.CallerOf(ctx)))
	if isOperator(authn.CallerOf(ctx)) {
		resp.SilentClients = s.silentClients()
	}
	return resp, nil
}

// seesAll reports whether a caller may read data that does not belong to a single tenant. People in the installation's
// tenant may read such data. A mesh service may read such data on its own behalf, or on behalf of a person in that
// tenant.
func seesAll(caller *authn.Caller) bool {
	if caller == nil {
		return false
	}
	return caller.Tenant() == installationTenant || caller.Person == nil && caller.Principal == nil
}

// isOperator reports whether a caller may read the standard error of servers' processes, which may contain callers'
// data.
func isOperator(caller *authn.Caller) bool {
	return seesAll(caller) && caller.Person.GetRole() == authv1.TokenRole_TOKEN_ROLE_OPERATOR
}

// silentClients returns the clients to which the gateway currently sends no forms, because they did not respond to
// earlier forms.
func (s *Service) silentClients() (out []*gatewayv1.SilentClient) {
	for _, e := range s.forms.Silent() {
		out = append(out, &gatewayv1.SilentClient{
			Tenant: e.Tenant, Subject: e.Subject, Agent: e.Agent, Name: e.Name, Version: e.Version, Until: timestamppb.New(e.Until),
		})
	}
	return out
}

// serverStatuses returns the states of the configured servers, sorted by name. If inDetail is true, the result includes
// details that only operators may see.
func (s *Service) serverStatuses(inDetail bool) (all []*gatewayv1.ServerStatus) {
	for _, name := range slices.Sorted(maps.Keys(s.servers)) {
		up := s.servers[name]
		status := &gatewayv1.ServerStatus{Name: name, Transport: up.Transport(), InFlight: up.InFlight(), LastError: up.LastError(), Revisions: s.mcp.Versions(name), ListFaults: s.mcp.Faults(name)}
		if inDetail {
			status.LastError, status.ProgramNotice = up.LastErrorInDetail(), up.ProgramNotice()
		}
		if until := up.CircuitOpenUntil(); !until.IsZero() {
			status.RestsUntil = timestamppb.New(until)
		}
		if since := up.StartingSince(); !since.IsZero() {
			status.StartingSince = timestamppb.New(since)
		}
		if _, ok := s.sandboxReports[name]; ok {
			r := s.sandboxReport(name)
			status.Sandbox = &gatewayv1.Sandbox{By: r.By, Held: r.Enforced, NotHeld: slices.Concat(r.NotEnforced, r.Opened), Why: r.Why}
		}
		all = append(all, status)
	}
	return all
}

// ListSessions implements gatewayv1.GatewayServiceServer. Sessions are sorted by the time of their last use. If a
// session is used while the client reads the pages, it moves to the front of the list, so the remaining pages might not
// contain it. Every other session is listed exactly once.
func (s *Service) ListSessions(ctx context.Context, req *gatewayv1.ListSessionsRequest) (*gatewayv1.ListSessionsResponse, error) {
	earlier, err := sessionPageFilter(req.GetPageToken())
	if err != nil {
		return nil, toStatus(err)
	}
	states := slices.DeleteFunc(s.sessions.List(tenantOf(ctx)), earlier)
	size := cmp.Or(int(req.GetPageSize()), defaultPage)
	resp := new(gatewayv1.ListSessionsResponse)
	if len(states) > size {
		states = states[:size]
		resp.NextPageToken = formatSessionToken(states[size-1])
	}
	for _, st := range states {
		resp.Sessions = append(resp.Sessions, &gatewayv1.Session{
			Digest: st.Digest, Tenant: st.Key.Tenant, Subject: st.Key.Subject, Agent: st.Agent, Server: st.Key.Server,
			ProtocolVersion: st.Version, Client: strings.TrimSpace(st.Client.Name + " " + st.Client.Version),
			Opened: timestamppb.New(st.Opened), LastUsed: timestamppb.New(st.LastUsed), InFlight: int32(st.InFlight),
		})
	}
	return resp, nil
}

// formatSessionToken returns the page token for a session's position in the list. The token contains the session's
// digest and the time at which the session was last used.
func formatSessionToken(st session.State) string {
	return strconv.FormatInt(st.LastUsed.UnixNano(), 10) + "-" + st.Digest
}

func sessionPageFilter(token string) (func(session.State) bool, error) {
	if token == "" {
		return func(session.State) bool { return false }, nil
	}
	used, digest, _ := strings.Cut(token, "-")
	at, err := strconv.ParseInt(used, 10, 64)
	if err != nil {
		return nil, errPageToken
	}
	return func(st session.State) bool {
		then := st.LastUsed.UnixNano()
		return then > at || then == at && st.Digest <= digest
	}, nil
}

// GetDecision implements gatewayv1.GatewayServiceServer.
func (s *Service) GetDecision(ctx context.Context, req *gatewayv1.GetDecisionRequest) (*gatewayv1.GetDecisionResponse, error) {
	done, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	records, err := s.journal.Find(ctx, req.GetId())
	if err != nil {
		return nil, fmt.Errorf("find decision %s: %w", req.GetId(), err)
	}
	resp, visible := new(gatewayv1.GetDecisionResponse), filter(ctx, nil)
	for i := range records {
		if visible(&records[i]) {
			resp.Records = append(resp.Records, journal.ToProto(&records[i]))
		}
	}
	if len(resp.GetRecords()) == 0 {
		return nil, toStatus(errNoDecision)
	}
	return resp, nil
}

// parsePageToken parses the page token of a list of records. For an empty token, it returns the position of the newest
// record.
func parsePageToken(token string) (at journal.Position, err error) {
	if token == "" {
		return at, nil
	}
	calls, refusals, _ := strings.Cut(token, "-")
	at.Calls, err = strconv.ParseInt(calls, 10, 64)
	if err == nil {
		at.Refusals, err = strconv.ParseInt(refusals, 10, 64)
	}
	if err != nil || at.Calls < 1 || at.Refusals < 1 {
		return journal.Position{}, errPageToken
	}
	return at, nil
}

// WatchDecisions implements gatewayv1.GatewayServiceServer.
func (s *Service) WatchDecisions(req *gatewayv1.WatchDecisionsRequest, stream grpc.ServerStreamingServer[gatewayv1.WatchDecisionsResponse]) error {
	ctx := stream.Context()
	records := s.journal.Follow(ctx, int(req.GetLast()), filter(ctx, req.GetFilter()), func() (func(), error) { return s.read(ctx) })
	if err := stream.Send(&gatewayv1.WatchDecisionsResponse{}); err != nil {
		return err
	}
	for rec, err := range records {
		if err != nil {
			return toStatus(err)
		}
		if err := stream.Send(&gatewayv1.WatchDecisionsResponse{Record: journal.ToProto(&rec)}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// tenantOf returns the tenant whose data the caller may see. It returns "" for callers that may not see any data. These
// are unauthenticated callers, and mesh services that do not call on behalf of a person or principal.
func tenantOf(ctx context.Context) string {
	caller := authn.CallerOf(ctx)
	if caller == nil {
		return ""
	}
	return caller.Tenant()
}

// filter returns a journal filter. It selects the records that match f, if the caller may see them. f is the filter in
// the caller's request. Only callers in the tenant "default" may see the counts of unauthenticated requests, because
// these counts belong to the installation.
func filter(ctx context.Context, f *gatewayv1.DecisionFilter) journal.Filter {
	tenant := tenantOf(ctx)
	return func(r *journal.Record) bool {
		seen := r.Tenant == tenant || r.Tenant == "" && tenant == installationTenant
		return tenant != "" && seen && matchesFilter(r, f)
	}
}

func matchesFilter(r *journal.Record, f *gatewayv1.DecisionFilter) bool {
	switch {
	case f == nil:
		return true
	case f.GetSince() != nil && r.Time.Before(f.GetSince().AsTime()),
		f.GetUntil() != nil && !r.Time.Before(f.GetUntil().AsTime()),
		f.GetServer() != "" && f.GetServer() != r.Server,
		f.GetTool() != "" && f.GetTool() != r.Tool,
		f.GetSubject() != "" && f.GetSubject() != r.Subject,
		len(f.GetCodes()) > 0 && !slices.Contains(f.GetCodes(), journal.CodeOf(r.Code)),
		len(f.GetKinds()) > 0 && !slices.ContainsFunc(f.GetKinds(), func(k gatewayv1.RecordKind) bool { return string(r.Kind) == enum.NameOrEmpty(k) }),
		f.GetWithoutProtocol() && mcpmethod.IsProtocol(r.Method) && (r.Code == "" || journal.CodeOf(r.Code) == commonv1.Code_CODE_METHOD_DENIED):
		return false
	default:
		return true
	}
}

func toStatus(err error) error {
	if refused, ok := errors.AsType[refusedError](err); ok {
		code := codes.InvalidArgument
		switch refused.Code { //nolint:exhaustive // every other code means that the message is invalid
		case commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, commonv1.Code_CODE_UPSTREAM_TIMEOUT, commonv1.Code_CODE_POLICY_UNAVAILABLE:
			code = codes.Unavailable
		case commonv1.Code_CODE_ABUSE_LIMITED, commonv1.Code_CODE_TOO_MANY_SESSIONS:
			code = codes.ResourceExhausted
		}
		return &rpc.Error{Code: code, Reason: strings.ToUpper(enum.NameOrEmpty(refused.Code)), Err: err}
	}
	switch {
	case errors.Is(err, errNoDecision):
		return &rpc.Error{Code: codes.NotFound, Reason: "DECISION_UNKNOWN", Err: err}
	case errors.Is(err, errOperatorRequired):
		return &rpc.Error{Code: codes.PermissionDenied, Reason: "OPERATOR_REQUIRED", Err: err}
	case errors.Is(err, errNotRecorded):
		return &rpc.Error{Code: codes.NotFound, Reason: "ARGUMENTS_NOT_RECORDED", Err: err}
	case errors.Is(err, arguments.ErrRemoved):
		return &rpc.Error{Code: codes.NotFound, Reason: "ARGUMENTS_REMOVED", Err: err}
	case errors.Is(err, arguments.ErrDamaged):
		return &rpc.Error{Code: codes.DataLoss, Reason: "ARGUMENTS_DAMAGED", Err: err}
	case errors.Is(err, errPageToken):
		return &rpc.Error{Code: codes.InvalidArgument, Reason: "PAGE_TOKEN_INVALID", Err: err}
	case errors.Is(err, journal.ErrSlowWatcher):
		return &rpc.Error{Code: codes.ResourceExhausted, Reason: "WATCHER_TOO_SLOW", Err: err}
	case errors.Is(err, errIdempotencyKey):
		return &rpc.Error{Code: codes.Unimplemented, Reason: "NOT_SERVED", Err: err}
	case errors.Is(err, errArguments):
		return &rpc.Error{Code: codes.InvalidArgument, Reason: "JSON_INVALID", Err: err}
	case errors.Is(err, mcpserver.ErrServer):
		return &rpc.Error{Code: codes.NotFound, Reason: "SERVER_UNKNOWN", Err: err}
	case errors.Is(err, mcpserver.ErrStopping):
		return &rpc.Error{Code: codes.Unavailable, Reason: "STOPPING", Err: err}
	case errors.Is(err, mcpserver.ErrSession):
		return &rpc.Error{Code: codes.Unavailable, Reason: "UPSTREAM_UNAVAILABLE", Err: err}
	case errors.Is(err, journal.ErrClosed):
		return &rpc.Error{Code: codes.Unavailable, Reason: "STOPPING", Err: err}
	default:
		return err
	}
}
