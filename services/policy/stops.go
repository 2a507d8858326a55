package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/epochlease"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

const (
	// maxDecisionAge is the maximum time between the request for a decision and the start of the call. The documentation
	// of DecideCall promises this limit.
	maxDecisionAge = time.Second
	// beginMargin is added to maxDecisionAge, because clocks do not run at exactly the same rate, and because a call
	// takes some time to reach its server.
	beginMargin = 200 * time.Millisecond
)

var (
	errSelector = errors.New("select calls by an agent, a server or a tenant, or select all calls and nothing else")
	errReason   = errors.New("a reason is required: the callers get it")
	errScope    = errors.New("only operators of the tenant \"default\" may stop or resume all calls, or calls of another tenant")
)

// StopCalls implements policyv1.PolicyServiceServer.
func (s *Service) StopCalls(ctx context.Context, req *policyv1.StopCallsRequest) (*policyv1.StopCallsResponse, error) {
	caller := authn.CallerOf(ctx)
	selector, err := selectorFor(caller, req.GetSelector())
	if err == nil && strings.TrimSpace(req.GetReason()) == "" {
		err = errReason
	}
	if err != nil {
		return nil, toStatus(err)
	}
	stop, existed, all, err := s.store.StopCalls(ctx, store.Stop{
		Stop: engine.Stop{Selector: selector, Reason: req.GetReason()}, OperatorTenant: caller.Tenant(), Operator: caller.Person.GetSubject(),
	})
	if err != nil {
		return nil, toStatus(storeError("the stop could not be stored", err))
	}
	s.publishStops(ctx, all)
	set, began := s.active.Load(), time.Now()
	if err := s.waitForCalls(ctx, set, began); err != nil {
		return nil, err
	}
	if !existed {
		s.deps.Log.WarnContext(ctx, "an operator has stopped calls", "calls", selector.String(), "operator", stop.Operator, "operator_tenant", stop.OperatorTenant, "reason", stop.Reason)
	}
	return &policyv1.StopCallsResponse{Stop: packStop(stop, caller), AlreadyStopped: existed, PolicyRevision: set.Revision(), Activation: set.activation()}, nil
}

// ResumeCalls implements policyv1.PolicyServiceServer.
func (s *Service) ResumeCalls(ctx context.Context, req *policyv1.ResumeCallsRequest) (*policyv1.ResumeCallsResponse, error) {
	caller := authn.CallerOf(ctx)
	selector, err := selectorFor(caller, req.GetSelector())
	if err != nil {
		return nil, toStatus(err)
	}
	ended, all, err := s.store.ResumeCalls(ctx, store.Resume{
		Selector: selector, OperatorTenant: caller.Tenant(), Operator: caller.Person.GetSubject(), AnyTenant: caller.OperatesInstallation(),
	})
	if err != nil {
		return nil, toStatus(storeError("the end of the stops could not be stored", err))
	}
	s.publishStops(ctx, all)
	set := s.active.Load()
	if err := s.waitForReplicas(ctx, set); err != nil {
		return nil, err
	}
	resp := &policyv1.ResumeCallsResponse{PolicyRevision: set.Revision(), Activation: set.activation()}
	for _, stop := range ended {
		s.deps.Log.WarnContext(ctx, "an operator has resumed calls", "calls", selector.String(), "operator", stop.ResumedBy, "operator_tenant", caller.Tenant())
		resp.Resumed = append(resp.Resumed, packStop(stop, caller))
	}
	return resp, nil
}

// ListStops implements policyv1.PolicyServiceServer.
func (s *Service) ListStops(ctx context.Context, req *policyv1.ListStopsRequest) (*policyv1.ListStopsResponse, error) {
	caller := authn.CallerOf(ctx)
	shows := func(stop store.Stop) bool {
		ofAgent := strings.HasPrefix(stop.Agent, "agent:"+caller.Tenant()+"/")
		return caller.Tenant() == homeTenant || stop.Tenant == caller.Tenant() || stop.Tenant == "" && (ofAgent || !strings.HasPrefix(stop.Agent, "agent:"))
	}
	var stops []store.Stop
	var err error
	if req.GetEnded() {
		stops, err = s.store.EndedStops(ctx, shows)
	} else {
		var all store.StopSet
		all, err = s.store.StopsInForce(ctx)
		stops = all.Stops
	}
	if err != nil {
		return nil, toStatus(storeError("the stops could not be read", err))
	}
	resp := new(policyv1.ListStopsResponse)
	for _, stop := range stops {
		if shows(stop) {
			resp.Stops = append(resp.Stops, packStop(stop, caller))
		}
	}
	return resp, nil
}

func storeError(what string, err error) error {
	if errors.Is(err, store.ErrStopsFull) {
		return err
	}
	return fmt.Errorf("%s: %w: %w", what, sqlstore.ErrUnavailable, err)
}

// selectorFor returns the selector in a request to stop or resume calls. Operators outside the tenant "default" may
// select only calls of their own tenant, so selectorFor restricts their selectors to this tenant.
func selectorFor(caller *authn.Caller, in *policyv1.StopSelector) (engine.Selector, error) {
	out := engine.Selector{Agent: in.GetAgent(), Server: in.GetServer(), Tenant: in.GetTenant()}
	if in.GetAll() == (out != engine.Selector{}) {
		return out, errSelector
	}
	if caller.OperatesInstallation() {
		return out, nil
	}
	if in.GetAll() || out.Tenant != "" && out.Tenant != caller.Tenant() {
		return out, errScope
	}
	out.Tenant = caller.Tenant()
	return out, nil
}

// packStop returns a stop as the caller may see it. People outside the tenant "default" do not see the names of
// operators of other tenants.
func packStop(stop store.Stop, caller *authn.Caller) *policyv1.Stop {
	out := &policyv1.Stop{
		Selector: &policyv1.StopSelector{All: stop.Selector == engine.Selector{}, Agent: stop.Agent, Server: stop.Server, Tenant: stop.Tenant},
		Reason:   stop.Reason, OperatorTenant: stop.OperatorTenant, Operator: stop.Operator, Began: timestamppb.New(stop.Began), ResumedBy: stop.ResumedBy,
	}
	if !stop.Ended.IsZero() {
		out.Ended = timestamppb.New(stop.Ended)
	}
	if caller.Tenant() != homeTenant && caller.Tenant() != stop.OperatorTenant {
		out.Operator, out.ResumedBy = "", ""
	}
	return out
}

// readStops reads the stops that are in force from the store and publishes them, if the store has changed since the
// last read of the stops. It must not be called concurrently.
func (s *Service) readStops(ctx context.Context) error {
	if s.version == s.stopsRead && s.version != 0 {
		return nil
	}
	all, err := s.store.StopsInForce(ctx)
	if err != nil {
		return fmt.Errorf("read the stops: %w", err)
	}
	s.publishStops(ctx, all)
	s.stopsRead = all.Version
	return nil
}

// publishStops puts the stops that were in force at a store version into the active set. It does nothing if the set
// already has the stops of this version or a newer one.
func (s *Service) publishStops(ctx context.Context, all store.StopSet) {
	s.changing.Lock()
	defer s.changing.Unlock()
	old, stops := s.active.Load(), all.Engine()
	if all.Version <= old.stopsVersion {
		return
	}
	next := *old
	next.stopsVersion = all.Version
	if stops.Sum() != old.Stops().Sum() {
		next.Set, next.number = old.WithStops(stops), old.number+1
		next.revision, next.activated = revisionOf(next.Set, next.catalog), later(time.Now(), old.activated)
		s.deps.Log.InfoContext(ctx, "the stops have changed", "stops", len(all.Stops), "revision", next.revision, "before", old.revision)
	}
	s.active.Store(&next)
	if next.number != old.number {
		s.changes.Notify()
	}
}

// waitForCalls waits until no more calls can start on the basis of a decision that was made with an older set. began is
// the time when the given set became active.
func (s *Service) waitForCalls(ctx context.Context, set *activeSet, began time.Time) error {
	until := began.Add(maxDecisionAge + beginMargin)
	if s.cfg.Source != sqlstore.SQLite { // after a change, other processes may use older sets for up to maxReadAge
		until = began.Add(maxPeerDelay - epochlease.MaxDuration + maxDecisionAge + beginMargin)
	}
	if err := s.waitForReplicas(ctx, set); err != nil {
		return err
	}
	return waitUntil(ctx, until, nil)
}
