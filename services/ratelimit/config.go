package ratelimit

import (
	"errors"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

// Config configures the rate limit service.
type Config struct {
	// MaxBuckets is how many buckets may be in use at the same time: 1 or more. Reservations that need more are
	// refused. A subject that has begun a 20th of them can't begin more.
	MaxBuckets int
	// MaxLeases is how many leases may live at the same time: 1 or more. Reservations beyond it are refused.
	MaxLeases int
}

// DefaultConfig returns the configuration that the service uses.
func DefaultConfig() Config { return Config{MaxBuckets: 1_000_000, MaxLeases: 1_000_000} }

// FromFile returns the service's configuration. The file has no keys for it.
func FromFile(*config.File) Config { return DefaultConfig() }

// Validate returns an error if the configuration is not valid.
func (c *Config) Validate() error {
	if c.MaxBuckets < 1 || c.MaxLeases < 1 {
		return errors.New("ratelimit: MaxBuckets and MaxLeases must be at least 1")
	}
	return nil
}
