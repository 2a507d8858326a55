package sandbox

// Ways to hold, for tests that choose one.
const (
	ByNamespaces = byNamespaces
	ByLandlock   = byLandlock
)

// NewBy is New with the given way alone.
func NewBy(launcher Launcher, rules Rules, by mechanism) (*Sandbox, error) {
	return newBy(launcher, rules, by)
}
