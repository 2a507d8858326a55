package module

// Grain is the grain of [Module.Metered].
const Grain = grain

// MeteredAt is [Module.Metered] with another grain.
func (m *Module) MeteredAt(grain int64) ([]byte, error) { return m.metered(grain) }
