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
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/policy/internal/lease"
)

const (
	// heardOfLate is the largest age of the last read of a store that other processes change, if a lease is to be
	// given. othersLearn is how long after a change another process may still have a lease from before the change.
	heardOfLate = 2 * followEvery
	othersLearn = heardOfLate + lease.Longest
)

// epoch identifies what decisions of a set are made from. It differs for every set, and after every start.
func (s *Service) epoch(set *activeSet) string {
	return s.boot + "-" + strconv.FormatUint(set.number, 36)
}

// LeaseRevision implements policyv1.PolicyServiceServer.
func (s *Service) LeaseRevision(stream grpc.BidiStreamingServer[policyv1.LeaseRevisionRequest, policyv1.LeaseRevisionResponse]) error {
	ctx := stream.Context()
	holder := s.leases.Enter(time.Now())
	defer holder.Leave()
	asked, ended := make(chan *policyv1.LeaseRevisionRequest), make(chan error, 1)
	go func() { // Recv returns only after this function has returned, so it can't be awaited here
		for {
			req, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case asked <- req:
			case <-ctx.Done():
				return
			}
		}
	}()
	for changed := s.changes.wait(); ; {
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
			changed = s.changes.wait()
		case req := <-asked:
			if err := holder.Took(req.GetTaken()); err != nil {
				return toStatus(err)
			}
			request = req.GetNumber()
		}
		if err := stream.Send(s.leased(ctx, holder, request)); err != nil {
			return err
		}
	}
}

// leased returns the next response to a holder. The answer to a request has a lease, unless the catalog was read too
// long ago.
func (s *Service) leased(ctx context.Context, to *lease.Holder, request uint64) *policyv1.LeaseRevisionResponse {
	resp := &policyv1.LeaseRevisionResponse{Request: request}
	now := time.Now()
	resp.Number = to.Tell(now, func() (epoch uint64, until time.Time) {
		set := s.active.Load()
		if set == nil {
			return 0, time.Time{}
		}
		resp.Revision, resp.Epoch = set.describe(authn.CallerOf(ctx)), s.epoch(set)
		if request != 0 && s.heardOfLate() {
			resp.Lease = durationpb.New(lease.Longest)
			until = now.Add(lease.Longest)
		}
		return set.number, until
	})
	return resp
}

// heardOfLate reports whether this process has recently read what other processes have changed.
func (s *Service) heardOfLate() bool {
	return s.cfg.Source == sqlstore.SQLite || s.age() < heardOfLate
}

// settle waits until no decision made before set can be used any more, of this process or of the one before it. It
// returns the error of ctx.
func (s *Service) settle(ctx context.Context, set *activeSet) error {
	for {
		until, freed := s.leases.Before(set.number, time.Now())
		if until.IsZero() {
			return waitUntil(ctx, s.opened.Add(lease.Longest), nil)
		}
		if err := waitUntil(ctx, until, freed); err != nil {
			return err
		}
	}
}

// acknowledge waits until the change that made set is in force everywhere, also for leases of other processes.
func (s *Service) acknowledge(ctx context.Context, set *activeSet) error {
	var until time.Time
	if s.cfg.Source != sqlstore.SQLite {
		until = time.Now().Add(othersLearn)
	}
	if err := s.settle(ctx, set); err != nil {
		return err
	}
	return waitUntil(ctx, until, nil)
}

// waitUntil waits until the time, or until sooner is closed.
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
