package policy

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/observe"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/epochlease"
)

// observeOf returns the servers that are in observe mode because of the configuration.
func observeOf(f *config.File) engine.Observe {
	out := engine.Observe{Servers: make(map[string]time.Time)}
	if f.Mode == observe.Observe {
		out.All = f.Until.Time()
	}
	for name, server := range f.Servers {
		if server.Mode == observe.Observe {
			out.Servers[name] = server.Until.Time()
		}
	}
	return out
}

// Observed returns the first 100 parts of the active policy that are in observe mode (mode: observe), in which
// decisions are recorded but not enforced. It also returns the number of all such parts.
func (s *Service) Observed() ([]*policyv1.ObservedPolicy, int) {
	if set := s.active.Load(); set != nil {
		return packObserved(set.Set)
	}
	return nil, 0
}

// DescribeObserved describes a part of the policy that is in observe mode, and when observe mode ends.
func DescribeObserved(p *policyv1.ObservedPolicy) string {
	o := engine.Observed{Server: p.GetServer(), Rule: engine.RuleRef{Document: p.GetRule().GetDocument(), Rule: p.GetRule().GetRule()}}
	return o.String() + ", until " + observe.Format(p.GetUntil().AsTime())
}

// observeFindings returns warnings about the servers that are in observe mode because of the configuration.
func observeFindings(f *config.File) []*policyv1.Finding {
	var out []*policyv1.Finding
	for _, w := range f.ObservationWarnings(time.Now()) {
		out = append(out, &policyv1.Finding{Severity: policyv1.Severity_SEVERITY_WARNING, Check: "observe", Message: w.Error()})
	}
	return out
}

// expired reports whether observe mode should already have ended for a part of the set.
func (a *activeSet) expired(now time.Time) bool {
	until := a.Until()
	return !until.IsZero() && !now.Before(until)
}

// maxLease returns the maximum duration of a lease that is granted now. A lease ends at the latest when observe mode
// ends for a part of the policy. After that, gateways must not use cached decisions.
func (a *activeSet) maxLease(now time.Time) time.Duration {
	if until := a.Until(); !until.IsZero() {
		return min(epochlease.MaxDuration, until.Sub(now))
	}
	return epochlease.MaxDuration
}

// current returns the active set, or nil if no policy is active. If observe mode should have ended for a part of the
// policy, current first replaces the set. [Service.Run] also does this, but too late if the machine was suspended or
// the clock was changed.
func (s *Service) current(ctx context.Context) (*activeSet, error) {
	set := s.active.Load()
	if set == nil || !set.expired(time.Now()) {
		return set, nil
	}
	return s.enforceEnded(ctx)
}

// enforceEnded compiles the active documents again if observe mode should have ended for a part of the policy. It
// returns the set that is active afterwards.
func (s *Service) enforceEnded(ctx context.Context) (*activeSet, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	old, now := s.active.Load(), time.Now()
	if !old.expired(now) {
		return old, nil
	}
	set, err := old.At(now)
	if err != nil {
		return nil, fmt.Errorf("enforce what was observed: %w", err)
	}
	next := *old
	next.Set, next.number, next.revision, next.activated = set, old.number+1, revisionOf(set, old.catalog), later(now, old.activated)
	s.active.Store(&next)
	s.deps.Log.InfoContext(ctx, "policies that were observed are enforced now", "revision", next.Revision(), "before", old.Revision())
	s.changes.Notify()
	return &next, nil
}

// enforceOnTime replaces the active set each time observe mode ends for a part of the policy. It returns when ctx is
// cancelled.
func (s *Service) enforceOnTime(ctx context.Context) error {
	for {
		changed := s.changes.Wait()
		set, err := s.current(ctx)
		if err != nil {
			return err
		}
		if set.Until().IsZero() {
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			}
			continue
		}
		if waitUntil(ctx, set.Until(), changed) != nil {
			return nil //nolint:nilerr // ctx is cancelled
		}
	}
}

// maxObserved limits the number of parts in observe mode in one message. Each watcher receives these parts with every
// heartbeat.
const maxObserved = 100

// packObserved returns the first maxObserved parts of the policy in observe mode, and the number of all such parts.
func packObserved(set *engine.Set) (out []*policyv1.ObservedPolicy, count int) {
	all := set.Observed()
	for _, o := range all[:min(len(all), maxObserved)] {
		p := &policyv1.ObservedPolicy{Server: o.Server, Until: timestamppb.New(o.Until)}
		if o.Rule.Document != "" {
			p.Rule = &policyv1.RuleRef{Document: o.Rule.Document, Rule: o.Rule.Rule}
		}
		out = append(out, p)
	}
	return out, len(all)
}

func packObservation(o *engine.Observation) *policyv1.Observation {
	if o == nil {
		return nil
	}
	out := &policyv1.Observation{Effect: effects[o.Effect], Code: packCode(o.Code), Message: o.Message, Rule: packRule(o.Rule)}
	for _, l := range o.Limits {
		out.Limits = append(out.Limits, packLimit(l))
	}
	return out
}
