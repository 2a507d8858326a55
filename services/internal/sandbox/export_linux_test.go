package sandbox

// The mechanisms, for tests that select one of them.
const (
	ByNamespaces = byNamespaces
	ByLandlock   = byLandlock
)

// Mechanism is a mechanism.
type Mechanism = mechanism

// NewBy is like New with only the given mechanism.
func NewBy(launcher Launcher, rules Rules, by Mechanism) (*Sandbox, error) {
	return newWith(launcher, rules, by)
}
