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
	// heardOfLate is how long ago a store that other processes change may have been read
	// last where a lease is given out, and othersLearn how long after a change no lease of
	// another process can stand that does not know of it.
	heardOfLate = 2 * followEvery
	othersLearn = heardOfLate + lease.Longest
)

// epoch names what decisions of a set are made from: another one for every set, and after
// every start.
func (s *Service) epoch(set *activeSet) string {
	return s.boot + "-" + strconv.FormatUint(set.number, 36)
}

// LeaseRevision implements policyv1.PolicyServiceServer.
func (s *Service) LeaseRevision(stream grpc.BidiStreamingServer[policyv1.LeaseRevisionRequest, policyv1.LeaseRevisionResponse]) error {
	ctx := stream.Context()
	holder := s.leases.Enter(time.Now())
	defer holder.Leave()
	asked, ended := make(chan *policyv1.LeaseRevisionRequest), make(chan error, 1)
	go func() { // Recv ends once this function has returned, so nobody can wait for it here
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

// leased is the next response to a holder: an answer to a request has a lease, unless
// nothing may be judged by what is known here.
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

// heardOfLate reports whether what is judged by here is what other processes judge by.
func (s *Service) heardOfLate() bool {
	return s.cfg.Source == sqlstore.SQLite || s.age() < heardOfLate
}

// settle waits until nobody can use a decision any more that was made from what was active
// before set, here or in the process before this one. The error is that of ctx.
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

// acknowledge waits until a change that made set holds everywhere: also where other
// processes give out leases.
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

// waitUntil waits until a time has come, or sooner is closed.
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
