package wasmmeter

// Grain exports the constant minSeparateCharge for tests.
const Grain = minSeparateCharge

// MeteredAt is [Module.Metered] with another value of minSeparateCharge, for tests.
func (m *Module) MeteredAt(minSeparate int64) ([]byte, error) { return m.metered(minSeparate) }
