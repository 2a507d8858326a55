package sandbox

// These are the mechanisms, for tests that choose one of them.
const (
	ByNamespaces = byNamespaces
	ByLandlock   = byLandlock
)

// Way is a mechanism.
type Way = mechanism

// NewBy is like New with only the given mechanism.
func NewBy(launcher Launcher, rules Rules, by Way) (*Sandbox, error) {
	return newWith(launcher, rules, by)
}
