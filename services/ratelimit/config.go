package ratelimit

import (
	"errors"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

// Config configures the rate limit service.
type Config struct {
	// MaxBuckets is how many buckets may have something taken from them at once.
	// Beyond it reservations that need another are refused; those of one principal
	// are once it has begun a 20th of them.
	MaxBuckets int
	// MaxLeases is how many leases may live at once, with the same consequence.
	MaxLeases int
}

// DefaultConfig returns the configuration used where a file says nothing.
func DefaultConfig() Config { return Config{MaxBuckets: 1_000_000, MaxLeases: 1_000_000} }

// FromFile returns the service's part of the configuration.
func FromFile(*config.File) Config { return DefaultConfig() }

// Validate returns everything that is wrong with the configuration.
func (c *Config) Validate() error {
	if c.MaxBuckets < 1 || c.MaxLeases < 1 {
		return errors.New("ratelimit: there must be room for at least one bucket and one lease")
	}
	return nil
}
