package sandbox

// These are the mechanisms, for tests that select one of them.
const (
	ByNamespaces = byNamespaces
	ByLandlock   = byLandlock
)

// Mechanism is a mechanism that enforces the rules.
type Mechanism = mechanism

// NewBy is like New, but tries only the given mechanism.
func NewBy(launcher Launcher, rules Rules, by Mechanism) (*Sandbox, error) {
	return newWith(launcher, rules, by)
}
