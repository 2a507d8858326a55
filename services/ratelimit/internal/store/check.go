package store

import (
	"fmt"
	"time"

	"github.com/sluice-mesh/sluice/services/ratelimit/internal/window"
)

// checkReservation returns an error that wraps ErrInvalid if a field of r is invalid.
func checkReservation(r *ReserveRequest) error {
	if r.Key == "" {
		return fmt.Errorf("%w: the idempotency key is empty", ErrInvalid)
	}
	if err := checkLifetime(r.Lifetime); err != nil {
		return err
	}
	if err := checkLimits(r.Limits); err != nil {
		return err
	}
	for i := range r.Limits {
		l := &r.Limits[i]
		if l.Cost < 1 {
			return fmt.Errorf("%w: limit %d: cost must be at least 1, is %d", ErrInvalid, i, l.Cost)
		}
		// With at most 64 limits, comparing all pairs costs less than a map.
		for j := range i {
			if r.Limits[j].Bucket == l.Bucket {
				return fmt.Errorf("%w: limits %d and %d have the same bucket", ErrInvalid, j, i)
			}
		}
	}
	return nil
}

// checkLimits returns an error that wraps ErrInvalid if the number of limits or a field of a limit is invalid. It does
// not check the costs.
func checkLimits(limits []Limit) error {
	if len(limits) < 1 || len(limits) > MaxLimits {
		return fmt.Errorf("%w: %d limits, want 1 to %d", ErrInvalid, len(limits), MaxLimits)
	}
	for i := range limits {
		l := &limits[i]
		switch {
		case l.Bucket == "":
			return fmt.Errorf("%w: limit %d: the bucket is empty", ErrInvalid, i)
		case l.Max < 0:
			return fmt.Errorf("%w: limit %d: max %d is negative", ErrInvalid, i, l.Max)
		case l.Window < 1 || l.Window > window.MaxLength:
			return fmt.Errorf("%w: limit %d: window %v is not within 1ns and %v", ErrInvalid, i, l.Window, window.MaxLength)
		}
	}
	return nil
}

// checkLifetime returns an error that wraps ErrInvalid if the lifetime of a reservation is invalid.
func checkLifetime(d time.Duration) error {
	if d < 1 || d > window.MaxLength {
		return fmt.Errorf("%w: the lifetime %v is not within 1ns and %v", ErrInvalid, d, window.MaxLength)
	}
	return nil
}
