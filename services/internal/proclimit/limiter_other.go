//go:build !linux

package proclimit

// A Limiter creates groups of processes. It can't limit the groups on this system.
type Limiter struct{}

// A Group is one process together with all its descendants.
type Group struct{}

// New returns a limiter without limits.
func New() *Limiter { return &Limiter{} }

// NewWatching returns a limiter without limits.
func NewWatching() *Limiter { return &Limiter{} }

// Report reports that no limit is enforced.
func (*Limiter) Report() Report {
	return Report{NotEnforced: []string{"tasks: not limited", "memory: not limited"}, Why: "limits are enforced only on Linux"}
}

// Close does nothing.
func (*Limiter) Close() {}

// Group returns a group without limits.
func (*Limiter) Group(string, Limits) *Group { return &Group{} }

// Join does nothing.
func (*Group) Join(int) {}

// Check returns nil.
func (*Group) Check() error { return nil }

// PIDs returns nil.
func (*Group) PIDs() []int { return nil }

// End does nothing.
func (*Group) End() {}

// Close does nothing.
func (*Group) Close() {}
