// Package store stores the buckets of rate limits, and leases on them.
//
// [Memory] stores them in the process. Every store must pass the tests of package storetest.
package store

import (
	"context"
	"errors"
	"time"
)

// MaxLimits is the largest number of limits in one reservation.
const MaxLimits = 64

var (
	// ErrInvalid means that the request is not valid: a limit is out of range, a bucket is named twice, or a bucket is
	// in use with another window. Nothing was taken.
	ErrInvalid = errors.New("invalid request")
	// ErrReused means that the key belongs to a live lease with other limits. Nothing was taken.
	ErrReused = errors.New("idempotency key was granted for other limits")
	// ErrFull means that the store has no capacity for another bucket or lease, or that the owner has begun too many
	// buckets. Nothing was taken.
	ErrFull = errors.New("limiter is full")
	// ErrNotFound means that the lease does not exist, or that nothing is taken from the bucket.
	ErrNotFound = errors.New("not found")
)

// Store counts what is taken from buckets. A bucket is a sliding window: at most max units are taken in any closed
// period of its window, by the store's clock at the time of Reserve. A bucket exists while something is taken from it.
//
// On any error the caller must not send the call. In addition to the errors named at the methods there are those of the
// context and of the connection to the store. All methods are atomic and safe for concurrent use.
type Store interface {
	// Reserve takes from all limits of r, or from none. A refusal is an answer, not an error, and stores nothing.
	//
	// While the lease of a grant lives, Reserve with the same key takes nothing more, and answers with the same lease
	// and with what is left now. The limits must be the same, in all fields and in order. A refusal is not remembered.
	//
	// Errors: ErrInvalid, ErrReused, ErrFull.
	Reserve(ctx context.Context, r Reservation) (Answer, error)

	// Renew makes a lease live for at least another d from now, and returns when the lease ends. It never shortens a
	// lease. d must be positive. Errors: ErrInvalid; ErrNotFound if the lease has ended.
	Renew(ctx context.Context, lease string, d time.Duration) (expires time.Time, err error)

	// Settle ends a lease and reports whether this call ended it: false if the lease had ended before or never existed.
	// NeverSent gives back exactly what the lease took, as far as its windows still count it. Errors: ErrInvalid for an
	// outcome that is neither Sent nor NeverSent.
	Settle(ctx context.Context, lease string, outcome Outcome) (settled bool, err error)

	// Peek returns what is left in the buckets of 1 to MaxLimits limits, in their order, without taking. It ignores
	// costs, and a bucket may be named twice. Errors: ErrInvalid.
	Peek(ctx context.Context, limits []Limit) (remaining []int64, err error)

	// Reset empties a bucket. Leases on it live on, but settling them gives nothing back to it. Errors: ErrNotFound if
	// nothing is taken from the bucket.
	Reset(ctx context.Context, bucket string) error
}

// Reservation is a request to take from limits.
type Reservation struct {
	// Key makes a repeat of the request safe; not empty. All keys are in one name space, so the keys of different
	// tenants must differ.
	Key string
	// Owner is the principal that buckets which the reservation begins count for. An owner that has begun too many gets
	// ErrFull before other owners do. All owners are in one name space.
	Owner string
	// Limits are 1 to MaxLimits limits, each with another bucket.
	Limits []Limit
	// Lease is how long the lease lives without Renew; positive. When the lease ends, what it took stays spent.
	Lease time.Duration
}

// Limit is one limit, and the cost to take from it. The zero value is invalid.
type Limit struct {
	// Bucket identifies what is counted; not empty. Buckets and keys are separate name spaces.
	Bucket string
	// Max is how many units may be taken in any period of Window: 0 or more. It may change between calls, and what was
	// taken stays taken. Up to 256 the count is exact; above, a unit may count up to a 64th of Window too long.
	Max int64
	// Window is the length of the period: 1 ns to 366 days. It must stay the same while the bucket is in use.
	Window time.Duration
	// Cost is how many units to take: 1 or more. A cost above Max is always refused.
	Cost int64
}

// Answer is a grant or a refusal. The zero value is a refusal.
type Answer struct {
	// Granted is true if the costs were taken.
	Granted bool
	// Lease is the lease of a grant; zero for a refusal.
	Lease Lease
	// Remaining is what is left in each bucket, in the order of the reservation: 0 or more.
	Remaining []int64
	// Limit is the index of the most important limit, from 0: for a grant the limit with the least left, for a refusal
	// the limit with the longest wait. Of equal limits it is the first.
	Limit int
	// RetryAfter is how long until the same reservation fits, if nothing else is taken: whole milliseconds, rounded up.
	// It is zero for a grant, and if Never is set.
	RetryAfter time.Duration
	// Never is true if a refused reservation will never fit, because a cost alone is more than its max.
	Never bool
}

// Lease identifies a grant, to renew and to settle it.
type Lease struct {
	// ID has 1 to 128 bytes. It is never used twice, also not by another process.
	ID string
	// Granted is when the lease began, by the wall clock.
	Granted time.Time
	// Expires is when the lease ends without Renew, by the wall clock.
	Expires time.Time
}

// Outcome is the outcome of a call as far as limits are concerned. The zero value is invalid.
type Outcome int

const (
	// Sent means that the call, or a part of it, was sent: everything stays spent, whatever the response.
	Sent Outcome = iota + 1
	// NeverSent means that the call certainly was not sent: everything is given back.
	NeverSent
)
