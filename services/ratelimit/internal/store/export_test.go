package store

import "time"

// Jump makes the clock jump, forwards or back.
func (m *Memory) Jump(d time.Duration) { m.origin = m.origin.Add(-d) }
