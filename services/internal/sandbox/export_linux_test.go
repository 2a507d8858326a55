package sandbox

// Ways to hold, for tests that choose one.
const (
	ByNamespaces = byNamespaces
	ByLandlock   = byLandlock
)

// Way is a way to hold.
type Way = mechanism

// NewBy is New with the given way alone.
func NewBy(launcher Launcher, rules Rules, by Way) (*Sandbox, error) {
	return newBy(launcher, rules, by)
}
