// Package ratelimit serves sluice.ratelimit.v1, which reserves units of rate limits for calls. A reservation takes
// units from all limits of a call, or from none. It ends when it is settled or when it expires. The API calls a
// reservation a lease. The service does not know the policies that define the limits.
package ratelimit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/ratelimit/internal/store"
)

// defaultLifetime is the lifetime of a reservation if the request does not set one.
const defaultLifetime = 5 * time.Minute

var (
	// errUnsupported means that a request contains an unsupported kind of limit, or that a request to settle a
	// reservation contains amounts.
	errUnsupported = errors.New("this kind of limit is not supported by this version")
	// errKeyUnsupported means that a request to settle a reservation contains the key of the reservation instead of its
	// ID.
	errKeyUnsupported = errors.New("a lease can't be settled by its key: settle it by its id, or let it expire")
)

// Deps are the dependencies of a [Service]. Every field is required.
type Deps struct {
	Log *slog.Logger
}

// Service implements ratelimitv1.RateLimitServiceServer.
type Service struct {
	ratelimitv1.UnimplementedRateLimitServiceServer

	store store.Store
	log   *slog.Logger
	// instance is a random string that differs after each start. Each process has its own counts, and instance shows
	// clients which process counted the units.
	instance string
}

// New returns a Service that stores its buckets in memory.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Log == nil {
		return nil, errors.New("ratelimit: a log is required")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	memory, err := store.NewMemory(store.Bounds{Buckets: cfg.MaxBuckets, Reservations: cfg.MaxReservations})
	if err != nil {
		return nil, fmt.Errorf("ratelimit: %w", err)
	}
	return &Service{store: memory, log: deps.Log, instance: rand.Text()}, nil
}

// Register implements rpc.Service.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	ratelimitv1.RegisterRateLimitServiceServer(r, s)
}

// ReserveLimits implements ratelimitv1.RateLimitServiceServer.
func (s *Service) ReserveLimits(ctx context.Context, req *ratelimitv1.ReserveLimitsRequest) (*ratelimitv1.ReserveLimitsResponse, error) {
	limits, err := unpack(ctx, req.GetLimits())
	if err != nil {
		return nil, toStatus(err)
	}
	result, err := s.store.Reserve(ctx, store.ReserveRequest{
		Key:      tenantName(ctx, req.GetIdempotencyKey()),
		Owner:    tenantName(ctx, authn.CallerOf(ctx).Principal.GetSubject()),
		Limits:   limits,
		Lifetime: lifetimeOr(req.GetLease()),
	})
	if err != nil {
		return nil, toStatus(err)
	}
	resp := pack(req, result)
	resp.Instance = s.instance
	return resp, nil
}

// RenewLease implements ratelimitv1.RateLimitServiceServer.
func (s *Service) RenewLease(ctx context.Context, req *ratelimitv1.RenewLeaseRequest) (*ratelimitv1.RenewLeaseResponse, error) {
	expires, err := s.store.Renew(ctx, req.GetLeaseId(), lifetimeOr(req.GetLease()))
	if err != nil {
		return nil, toStatus(err)
	}
	return &ratelimitv1.RenewLeaseResponse{Expires: timestamppb.New(expires)}, nil
}

// SettleLease implements ratelimitv1.RateLimitServiceServer.
func (s *Service) SettleLease(ctx context.Context, req *ratelimitv1.SettleLeaseRequest) (*ratelimitv1.SettleLeaseResponse, error) {
	if len(req.GetAmounts()) > 0 {
		return nil, toStatus(errUnsupported) // only budgets, which are not supported, have amounts
	}
	if req.GetKey() != nil {
		return nil, toStatus(errKeyUnsupported)
	}
	settled, err := s.store.Settle(ctx, req.GetLeaseId(), outcomes[req.GetSettlement()])
	if err != nil {
		return nil, toStatus(err)
	}
	resp := &ratelimitv1.SettleLeaseResponse{Settled: settled}
	if settled { // the store does not record how other reservations ended
		resp.Ended = ends[req.GetSettlement()]
	}
	return resp, nil
}

// PeekBuckets implements ratelimitv1.RateLimitServiceServer.
func (s *Service) PeekBuckets(ctx context.Context, req *ratelimitv1.PeekBucketsRequest) (*ratelimitv1.PeekBucketsResponse, error) {
	limits, err := unpack(ctx, req.GetLimits())
	if err != nil {
		return nil, toStatus(err)
	}
	left, err := s.store.Peek(ctx, limits)
	if err != nil {
		return nil, toStatus(err)
	}
	return &ratelimitv1.PeekBucketsResponse{Remaining: remaining(req.GetLimits(), left)}, nil
}

// ResetBucket implements ratelimitv1.RateLimitServiceServer.
func (s *Service) ResetBucket(ctx context.Context, req *ratelimitv1.ResetBucketRequest) (*ratelimitv1.ResetBucketResponse, error) {
	if err := s.store.Reset(ctx, tenantName(ctx, req.GetBucket())); err != nil {
		return nil, toStatus(err)
	}
	by := authn.CallerOf(ctx)
	s.log.InfoContext(ctx, "bucket emptied", "bucket", req.GetBucket(), "tenant", by.Tenant(),
		"by", by.Person.GetSubject(), "comment", req.GetComment())
	return &ratelimitv1.ResetBucketResponse{}, nil
}

// tenantName returns the name of a key or a bucket with the caller's tenant as a prefix. Because of the prefix, callers
// can use only the keys and buckets of their own tenant. The name of a tenant contains no slash.
func tenantName(ctx context.Context, name string) string {
	return authn.CallerOf(ctx).Tenant() + "/" + name
}

func lifetimeOr(d *durationpb.Duration) time.Duration {
	if d == nil {
		return defaultLifetime
	}
	return d.AsDuration()
}

var outcomes = map[ratelimitv1.Settlement]store.Outcome{
	ratelimitv1.Settlement_SETTLEMENT_SENT:       store.Sent,
	ratelimitv1.Settlement_SETTLEMENT_NEVER_SENT: store.NeverSent,
}

var ends = map[ratelimitv1.Settlement]ratelimitv1.LeaseEnd{
	ratelimitv1.Settlement_SETTLEMENT_SENT:       ratelimitv1.LeaseEnd_LEASE_END_SENT,
	ratelimitv1.Settlement_SETTLEMENT_NEVER_SENT: ratelimitv1.LeaseEnd_LEASE_END_NEVER_SENT,
}

// unpack converts limits of the API to limits of the store.
func unpack(ctx context.Context, limits []*ratelimitv1.Limit) ([]store.Limit, error) {
	out := make([]store.Limit, len(limits))
	for i, l := range limits {
		if l.GetKind() != ratelimitv1.LimitKind_LIMIT_KIND_SLIDING_WINDOW {
			return nil, fmt.Errorf("limit %d: %w", i, errUnsupported)
		}
		maxUnits, err := strconv.ParseInt(l.GetMax(), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("limit %d: max must be a whole number of at most 63 bits, is %q: %w", i, l.GetMax(), store.ErrInvalid)
		}
		cost, err := strconv.ParseInt(l.GetCost(), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("limit %d: cost must be a whole number of at most 63 bits, is %q: %w", i, l.GetCost(), store.ErrInvalid)
		}
		out[i] = store.Limit{Bucket: tenantName(ctx, l.GetBucket()), Max: maxUnits, Window: l.GetWindow().AsDuration(), Cost: cost}
	}
	return out, nil
}

func pack(req *ratelimitv1.ReserveLimitsRequest, a store.Result) *ratelimitv1.ReserveLimitsResponse {
	left := remaining(req.GetLimits(), a.Remaining)
	if a.Granted {
		return &ratelimitv1.ReserveLimitsResponse{Result: &ratelimitv1.ReserveLimitsResponse_Lease{Lease: &ratelimitv1.Lease{
			Id:        a.Reservation.ID,
			Granted:   timestamppb.New(a.Reservation.Granted),
			Expires:   timestamppb.New(a.Reservation.Expires),
			Remaining: left,
			Tightest:  int32(a.Limit),
		}}}
	}
	refusal := &ratelimitv1.Refusal{
		Code:      commonv1.Code_CODE_RATE_LIMITED,
		Limit:     int32(a.Limit),
		Remaining: left,
		Never:     a.Never,
	}
	if !a.Never {
		refusal.RetryAfter = durationpb.New(a.RetryAfter)
	}
	return &ratelimitv1.ReserveLimitsResponse{Result: &ratelimitv1.ReserveLimitsResponse_Refusal{Refusal: refusal}}
}

func remaining(limits []*ratelimitv1.Limit, left []int64) []*ratelimitv1.Remaining {
	out := make([]*ratelimitv1.Remaining, len(left))
	for i, n := range left {
		out[i] = &ratelimitv1.Remaining{Bucket: limits[i].GetBucket(), Remaining: strconv.FormatInt(n, 10)}
	}
	return out
}

// toStatus adds the gRPC code and the reason to an error of this service. It returns other errors unchanged.
func toStatus(err error) error {
	switch {
	case errors.Is(err, errUnsupported):
		return &rpc.Error{Code: codes.Unimplemented, Reason: "LIMIT_KIND_UNSUPPORTED", Err: err}
	case errors.Is(err, errKeyUnsupported):
		return &rpc.Error{Code: codes.Unimplemented, Reason: "KEY_UNSUPPORTED", Err: err}
	case errors.Is(err, store.ErrInvalid):
		return &rpc.Error{Code: codes.InvalidArgument, Reason: "LIMIT_INVALID", Err: err}
	case errors.Is(err, store.ErrReused):
		return &rpc.Error{Code: codes.InvalidArgument, Reason: "IDEMPOTENCY_KEY_REUSED", Err: err}
	case errors.Is(err, store.ErrFull):
		return &rpc.Error{Code: codes.ResourceExhausted, Reason: "LIMITER_FULL", Err: err}
	case errors.Is(err, store.ErrNotFound):
		return &rpc.Error{Code: codes.NotFound, Reason: "NOT_FOUND", Err: err}
	default:
		return err
	}
}
