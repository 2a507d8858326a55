// Package store keeps the buckets of rate limits and the leases on them.
//
// [Memory] keeps them in the process. Every store passes the suite in storetest.
package store

import (
	"context"
	"errors"
	"time"
)

// MaxLimits is how many limits one reservation may name.
const MaxLimits = 64

var (
	// ErrInvalid means that the question makes no sense: a limit out of range, a
	// bucket named twice, a bucket that is kept with another window. Nothing was
	// taken.
	ErrInvalid = errors.New("invalid request")
	// ErrReused means that the key of a lease that still lives came with other
	// limits. Nothing was taken.
	ErrReused = errors.New("idempotency key was granted for other limits")
	// ErrFull means that there is no room for another bucket or lease, or none for
	// another bucket of this owner. Nothing was taken.
	ErrFull = errors.New("limiter is full")
	// ErrNotFound means that there is no such lease, or no such bucket with
	// anything taken.
	ErrNotFound = errors.New("not found")
)

// Store counts what is taken from buckets. A bucket is a sliding window: never
// more than its max in any closed stretch of its window, by the store's clock at
// the time of Reserve. It exists while something is taken from it.
//
// Any error means that the caller must not go ahead; besides those named at the
// methods there are errors of the context and of the way to the store. All
// methods are safe for concurrent use and each takes effect at one moment.
type Store interface {
	// Reserve takes from all limits of r, or from none. A refusal is an answer, not
	// an error, and stores nothing.
	//
	// While the lease of a grant lives, Reserve with its key takes nothing more and
	// answers with the same lease and what is left now; limits are compared with
	// all their fields and in order. A refusal is not remembered.
	//
	// Errors: ErrInvalid, ErrReused, ErrFull.
	Reserve(ctx context.Context, r Reservation) (Answer, error)

	// Renew makes a lease live for at least another d from now, and returns when it
	// ends; it never shortens it. d must be positive. Errors: ErrInvalid;
	// ErrNotFound where the lease has ended.
	Renew(ctx context.Context, lease string, d time.Duration) (expires time.Time, err error)

	// Settle ends a lease and reports whether it was this call that did: false where
	// the lease had ended or never was. NeverSent gives back exactly what the lease
	// took, as far as its windows still count it. Errors: ErrInvalid for an outcome
	// that is neither Sent nor NeverSent.
	Settle(ctx context.Context, lease string, outcome Outcome) (settled bool, err error)

	// Peek returns what is left in the buckets of 1 to MaxLimits limits, in their
	// order, without taking. Costs don't matter, and a bucket may be named twice.
	// Errors: ErrInvalid.
	Peek(ctx context.Context, limits []Limit) (remaining []int64, err error)

	// Reset empties a bucket. Leases on it live on, but settling them gives nothing
	// back to it. Errors: ErrNotFound where nothing is taken from it.
	Reset(ctx context.Context, bucket string) error
}

// Reservation is what one call wants to take.
type Reservation struct {
	// Key makes a repeat safe; not empty. Keys are one name space: what must not
	// meet, such as the keys of two tenants, has to be told apart in the key.
	Key string
	// Owner is who answers for the buckets that it begins: one who begins too many
	// gets ErrFull before others do. Owners are one name space, too.
	Owner string
	// Limits, 1 to MaxLimits, each bucket once.
	Limits []Limit
	// Lease is how long the lease lives without Renew; positive. When it ends, what
	// it took stays spent.
	Lease time.Duration
}

// Limit is one limit and what is wanted of it. The zero value is invalid.
type Limit struct {
	// Bucket is the identity of what is counted; not empty. Keys and buckets don't
	// mix: one may read like the other.
	Bucket string
	// Max is how many units fit in any stretch of Window: 0 or more. It may change
	// from one call to the next, and what is taken holds. Up to 256 it is counted
	// exactly; above, units may be held up to a 64th of Window too long.
	Max int64
	// Window is the length of the stretch: 1 ns to 366 days. It is part of what the
	// bucket is, and stays the same.
	Window time.Duration
	// Cost is how many units are wanted: 1 or more. More than Max is refused for
	// ever.
	Cost int64
}

// Answer is a grant or a refusal. The zero value is a refusal.
type Answer struct {
	// Granted tells that room was taken.
	Granted bool
	// Lease is what the call holds; zero where refused.
	Lease Lease
	// Remaining is what is left in each bucket, in the order of the reservation: 0
	// or more.
	Remaining []int64
	// Limit is the index of the limit that matters most, from 0: where granted the
	// one with the least left, where refused the one to wait for longest. Of equals
	// it is the first.
	Limit int
	// RetryAfter is how long until the same reservation fits, if nobody else takes:
	// whole milliseconds, rounded up. Zero where granted, and where Never is set.
	RetryAfter time.Duration
	// Never tells that a refused reservation will not fit at any time, because a
	// cost alone is more than its max.
	Never bool
}

// Lease is the right to settle a grant.
type Lease struct {
	// ID is for Renew and Settle: 1 to 128 bytes, and never given out twice, also
	// not by the next process.
	ID string
	// Granted is when it began, on the wall clock.
	Granted time.Time
	// Expires is when it ends without Renew, on the wall clock.
	Expires time.Time
}

// Outcome is what came of a call, as far as limits care. The zero value is
// invalid.
type Outcome int

const (
	// Sent means that bytes went out: everything is spent, whatever came back.
	Sent Outcome = iota + 1
	// NeverSent means that the call provably never left: everything is given back.
	NeverSent
)
