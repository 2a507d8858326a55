package policy

import (
	"context"
	"errors"
	"io"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/policy/internal/epochlease"
)

const (
	// maxReadAge is the maximum age of the data from the store when a lease is granted. It applies only if other processes
	// can change the store. maxPeerDelay limits how long after a change a lease from another process can still be valid.
	maxReadAge   = 2 * pollInterval
	maxPeerDelay = maxReadAge + epochlease.MaxDuration
)

// epoch returns a string that identifies a policy set. All decisions in one epoch use the same policies and the same
// catalog. The string remains unique when the service restarts.
func (s *Service) epoch(set *activeSet) string {
	return s.boot + "-" + strconv.FormatUint(set.number, 36)
}

// LeaseRevision implements policyv1.PolicyServiceServer.
func (s *Service) LeaseRevision(stream grpc.BidiStreamingServer[policyv1.LeaseRevisionRequest, policyv1.LeaseRevisionResponse]) error {
	ctx := stream.Context()
	holder := s.epochLeases.Enter(time.Now())
	defer holder.Leave()
	requests, ended := make(chan *policyv1.LeaseRevisionRequest), make(chan error, 1)
	go func() { // LeaseRevision does not wait for this goroutine, because Recv may return only after LeaseRevision
		for {
			req, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case requests <- req:
			case <-ctx.Done():
				return
			}
		}
	}()
	for changed := s.changes.Wait(); ; {
		var request uint64
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-changed:
			changed = s.changes.Wait()
		case req := <-requests:
			if err := holder.Acknowledge(req.GetTaken()); err != nil {
				return toStatus(err)
			}
			request = req.GetNumber()
		}
		if err := stream.Send(s.leaseResponse(ctx, holder, request)); err != nil {
			return err
		}
	}
}

// leaseResponse returns the next response to a gateway. The parameter request is the number of the request that the
// response answers, or 0 if the response answers no request. The response grants a lease only if it answers a request
// and the store was read recently.
func (s *Service) leaseResponse(ctx context.Context, to *epochlease.Holder, request uint64) *policyv1.LeaseRevisionResponse {
	resp := &policyv1.LeaseRevisionResponse{Request: request}
	now := time.Now()
	resp.Number = to.Record(now, func() (epoch uint64, until time.Time) {
		set := s.active.Load()
		if set == nil {
			return 0, time.Time{}
		}
		resp.Revision, resp.Epoch, resp.NeededScopes = set.describe(authn.CallerOf(ctx)), s.epoch(set), s.neededScopes(set)
		if lease := set.maxLease(now); request != 0 && lease > 0 && s.readRecently() {
			resp.Lease = durationpb.New(lease)
			until = now.Add(lease)
		}
		return set.number, until
	})
	return resp
}

func (s *Service) readRecently() bool {
	return s.cfg.Source == sqlstore.SQLite || s.catalogAge() < maxReadAge
}

// waitForOlderLeases waits until all gateways use only decisions of the given set or of newer sets. It also waits for
// leases that were granted before the last restart of the service. It returns an error only if ctx is cancelled.
func (s *Service) waitForOlderLeases(ctx context.Context, set *activeSet) error {
	for {
		until, freed := s.epochLeases.OlderUntil(set.number, time.Now())
		if until.IsZero() {
			return waitUntil(ctx, s.opened.Add(epochlease.MaxDuration), nil)
		}
		if err := waitUntil(ctx, until, freed); err != nil {
			return err
		}
	}
}

// waitForReplicas waits until all replicas and gateways use the given set or a newer one. During this time, the service
// processes other calls from the same operator.
func (s *Service) waitForReplicas(ctx context.Context, set *activeSet) error {
	rpc.EndTurn(ctx)
	var until time.Time
	if s.cfg.Source != sqlstore.SQLite {
		until = time.Now().Add(maxPeerDelay)
	}
	if err := s.waitForOlderLeases(ctx, set); err != nil {
		return err
	}
	return waitUntil(ctx, until, nil)
}

// waitUntil waits until the given time, until the channel sooner is closed, or until ctx is cancelled. It returns an
// error only if ctx is cancelled.
func waitUntil(ctx context.Context, until time.Time, sooner <-chan struct{}) error {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-sooner:
	case <-timer.C:
	}
	return nil
}
