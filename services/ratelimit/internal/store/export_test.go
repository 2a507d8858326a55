package store

import "time"

// Jump moves the clock forward, or back if d is negative.
func (m *Memory) Jump(d time.Duration) { m.origin = m.origin.Add(-d) }

// Owners returns the number of stored owners.
func (m *Memory) Owners() int { return len(m.buckets.owners.named) }
