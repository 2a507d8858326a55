package wasmmeter

// Grain exports the constant minSeparateCharge for tests.
const Grain = minSeparateCharge

// MeteredAt is like [Module.Metered], but uses minSeparate instead of the constant minSeparateCharge. It is for tests.
func (m *Module) MeteredAt(minSeparate int64) ([]byte, error) { return m.metered(minSeparate) }
