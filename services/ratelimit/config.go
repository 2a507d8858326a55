package ratelimit

import (
	"errors"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

// Config configures the rate limit service.
type Config struct {
	// MaxBuckets is the maximum number of buckets in use at the same time. It must be at least 1. A reservation is refused
	// if it needs more buckets than that. One principal may create at most a 20th of MaxBuckets.
	MaxBuckets int
	// MaxReservations is the maximum number of reservations at the same time. It must be at least 1. Further reservations
	// are refused.
	MaxReservations int
}

// DefaultConfig returns the default configuration.
func DefaultConfig() Config { return Config{MaxBuckets: 1_000_000, MaxReservations: 1_000_000} }

// FromFile returns the configuration of the service. It always returns the default, because the configuration file has
// no keys for this service.
func FromFile(*config.File) Config { return DefaultConfig() }

// Validate returns an error if the configuration is invalid.
func (c *Config) Validate() error {
	if c.MaxBuckets < 1 || c.MaxReservations < 1 {
		return errors.New("ratelimit: MaxBuckets and MaxReservations must be at least 1")
	}
	return nil
}
