package store

import "time"

// Jump makes the clock jump, forwards or back.
func (m *Memory) Jump(d time.Duration) { m.origin = m.origin.Add(-d) }

// Owners returns how many owners are kept.
func (m *Memory) Owners() int { return len(m.buckets.owners.named) }
