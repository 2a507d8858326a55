// Package store stores the buckets of rate limits, and the reservations that took units from them.
//
// [Memory] stores them in the memory of the process. Every [Store] must pass the tests of package storetest.
package store

import (
	"context"
	"errors"
	"time"
)

// MaxLimits is the maximum number of limits in one reservation.
const MaxLimits = 64

var (
	// ErrInvalid means that the request is invalid. For example, a limit is out of range, two limits have the same bucket,
	// or a bucket is in use with a different window. No units were taken.
	ErrInvalid = errors.New("invalid request")
	// ErrReused means that a reservation with the same key but different limits exists. No units were taken.
	ErrReused = errors.New("idempotency key was used for other limits")
	// ErrFull means that the store has no capacity for another bucket or reservation, or that the owner has created too
	// many buckets. No units were taken.
	ErrFull = errors.New("limiter is full")
	// ErrNotFound means that the reservation does not exist, or that no units of the bucket are currently taken.
	ErrNotFound = errors.New("not found")
)

// Store counts the units that are taken from buckets. A bucket is a sliding window, so in any closed period of the
// window's length, at most Max units are taken. Units count from the time of Reserve on the store's clock. A bucket
// exists as long as some of its units are taken.
//
// If a method returns an error, the caller must not send the tool call for which it wanted the units. A method returns
// the errors that its comment lists, errors of the context, and errors of the connection to the store. All methods are
// atomic and safe for concurrent use.
type Store interface {
	// Reserve takes units from all limits of r, or from none. If the units don't fit, the result is a refusal, and nothing
	// is stored. A refusal is not an error.
	//
	// If a reservation with the same key exists, Reserve takes no more units. It returns the existing reservation and the
	// units that remain now. The limits must be equal to the limits of the existing reservation, in the same order.
	//
	// The error is ErrInvalid, ErrReused or ErrFull.
	Reserve(ctx context.Context, r ReserveRequest) (Result, error)

	// Renew extends the reservation with the given ID, so that it expires no earlier than d from now. It returns the
	// time at which the reservation expires, and never shortens a reservation. d must be positive.
	//
	// The error is ErrInvalid, or ErrNotFound if the reservation has ended.
	Renew(ctx context.Context, id string, d time.Duration) (expires time.Time, err error)

	// Settle ends the reservation with the given ID. It returns true if this call ended the reservation, and false if
	// the reservation had already ended or never existed. If outcome is NeverSent, Settle returns the reservation's
	// units to their buckets, except units that no longer count.
	//
	// The error is ErrInvalid if outcome is neither Sent nor NeverSent.
	Settle(ctx context.Context, id string, outcome Outcome) (settled bool, err error)

	// Peek returns the remaining units in the buckets of 1 to MaxLimits limits, in the same order. It takes no units and
	// ignores the costs. Several limits may have the same bucket. The error is ErrInvalid.
	Peek(ctx context.Context, limits []Limit) (remaining []int64, err error)

	// Reset empties a bucket. Reservations that took units from the bucket still exist, but Settle no longer returns
	// their units to the bucket.
	//
	// The error is ErrNotFound if no units are taken from the bucket.
	Reset(ctx context.Context, bucket string) error
}

// ReserveRequest is a request to take units from limits.
type ReserveRequest struct {
	// Key identifies repeats of the request. It must not be empty. All tenants share one namespace of keys, so different
	// tenants must use different keys.
	Key string
	// Owner is the principal that is charged for the buckets that the request creates. If an owner has too many
	// buckets, its requests fail with ErrFull, while requests of other owners succeed. All tenants share one namespace
	// of owners.
	Owner string
	// Limits contains 1 to MaxLimits limits with distinct buckets.
	Limits []Limit
	// Lifetime is the time after which the reservation expires unless it is renewed. It must be positive. When the
	// reservation expires, its units are not returned to the buckets.
	Lifetime time.Duration
}

// Limit is a limit, and the number of units to take from its bucket. The zero value is invalid.
type Limit struct {
	// Bucket identifies the counter. It must not be empty. Buckets and keys have separate namespaces.
	Bucket string
	// Max is the maximum number of units that are taken in any period of Window. It must not be negative. It may differ
	// between calls. Units that are already taken remain taken. If Max is at most 256, the count is exact. Otherwise a
	// unit can count for up to a 64th of Window too long.
	Max int64
	// Window is the length of the period, between 1 ns and 366 days. It must stay the same while the bucket is in use.
	Window time.Duration
	// Cost is the number of units to take. It must be at least 1. A cost above Max is always refused.
	Cost int64
}

// Result is the result of [Store.Reserve], which is either a grant or a refusal. The zero value is a refusal.
type Result struct {
	// Granted is true if the units were taken.
	Granted bool
	// Reservation is the reservation of a grant. It is zero for a refusal.
	Reservation Reservation
	// Remaining contains the units that remain in each bucket, in the order of the request's limits.
	Remaining []int64
	// Limit is the index of a limit in the request. For a grant, it is the limit with the fewest remaining units. For a
	// refusal, it is the first limit that never fits, or otherwise the limit with the longest wait. If several limits
	// qualify, Limit is the index of the first.
	Limit int
	// RetryAfter is the time after which the same request fits, if no other units are taken. It is rounded up to whole
	// milliseconds. It is zero for a grant and if Never is true.
	RetryAfter time.Duration
	// Never is true if a refused request will never fit, because the cost of a limit is more than its Max.
	Never bool
}

// Reservation identifies a grant for [Store.Renew] and [Store.Settle]. The API calls it a lease.
type Reservation struct {
	// ID has 1 to 128 bytes. No two reservations have the same ID, even in different processes.
	ID string
	// Granted is the time of the grant on the wall clock.
	Granted time.Time
	// Expires is the time, on the wall clock, at which the reservation expires unless it is renewed.
	Expires time.Time
}

// Outcome specifies whether the reserved call was sent. The zero value is invalid.
type Outcome int

const (
	// Sent means that the call, or a part of it, was sent. The units remain taken, regardless of the response.
	Sent Outcome = iota + 1
	// NeverSent means that no part of the call was sent. The units are returned to the buckets.
	NeverSent
)
