package module

import (
	"math"
	"slices"
	"strconv"
)

// MeterVersion says how work is counted. Fuel of two versions can't be compared.
const MeterVersion = 4

// Names that a metered module has beside its own. No guest may export such a one.
const (
	ownPrefix = "sluice."
	// RefillModule is the module of [RefillName].
	RefillModule = "sluice"
	// RefillName is the function that is called once fuel is below zero: it gets how much
	// there is, and returns how much there is from then on. Both are an i64 of less than 2^46.
	RefillName = "refill"
	// FuelGlobal is the fuel that is left, an i64, where the guest calls the host and where it
	// has returned; while it runs it is 0, so one that traps has taken all that it was given.
	FuelGlobal = ownPrefix + "fuel"
	// StackSpent is what [RefillName] gets where the stack is spent: it must not return.
	StackSpent = math.MinInt64
	// globalPrefix is before the number of each global that can change: they are the
	// guest's state beside its memory.
	globalPrefix = ownPrefix + "global."
)

const (
	// MaxStack is how large the stack may be, in bytes as they are counted here: each function
	// that calls others takes of it what its frame may be at the most, until it returns. Whatever
	// the host calls has the whole.
	MaxStack = 4 << 20
	// frameBytes is what every frame takes, valueBytes what a value does that is kept in it, and
	// codeBytes what a byte of code may need for what it computes.
	frameBytes, valueBytes, codeBytes = 128, 16, 4
)

// What is charged.
const (
	// grain is how long what follows a branch has to be to be charged where it begins,
	// instead of with what comes before the branch.
	grain = 4
	// bytesPerFuel is how many bytes are filled or copied for one, as a shift, and
	// fuelPerPage how much a page of memory costs that the guest gets, as a shift.
	bytesPerFuel, fuelPerPage = 3, 13
)

// Metered returns the module written again so that it counts its instructions: each takes
// one of the fuel, what fills or copies memory one more for each 8 bytes, and each page
// that the memory grows by 8,192. Where a branch skips less than some instructions they
// are charged all the same. In the loop that Go's compiler makes of a function, a jump that
// may go to its part at once does, and takes nothing for what would have found the part.
//
// Work is charged before it is done, at the start of functions, loops and longer branches; at
// the start of functions and loops, and of what fills or copies, [RefillName] is called where
// fuel is below zero. Functions that call others take of the stack as long as they run, up to
// [MaxStack]. The same module on the same inputs takes the same fuel, whatever is refilled at
// a time. Beside that it computes what it did. Errors: those of [Parse].
func (m *Module) Metered() ([]byte, error) { return m.metered(grain) }

func (m *Module) metered(grain int64) ([]byte, error) {
	l := layoutOf(m)
	w := &writer{m: m, out: slices.Clone(header)}
	w.section(typeSection, 1+3*len(m.types), l.putTypes)
	w.section(importSection, len(m.Imports)+1, func(out []byte) []byte {
		for i, f := range m.Imports {
			out = append(putName(putName(out, f.Module), f.Name), byte(Func))
			out = putU32(out, m.typeOf[i])
		}
		out = append(putName(putName(out, RefillModule), RefillName), byte(Func))
		return putU32(out, l.refillType())
	})
	w.section(functionSection, l.functions(), l.putFunctions)
	w.section(tableSection, len(m.tables), func(out []byte) []byte {
		for _, t := range m.tables {
			out = t.put(append(out, 0x70))
		}
		return out
	})
	if m.Memory != nil {
		w.section(memorySection, 1, m.Memory.put)
	}
	b := bodyWriter{scope: scope{layout: l}}
	code, err := b.writeAll(grain)
	if err != nil {
		return nil, err
	}
	w.section(globalSection, len(m.globals)+1+len(b.aside), func(out []byte) []byte {
		for _, g := range m.globals {
			out = g.init.put(append(out, byte(g.kind), flagByte(g.mutable)))
		}
		out = constant{op: opI64Const, bits: []byte{0}}.put(append(out, byte(I64), 1))
		for _, a := range b.aside {
			out = asideKinds[a].zero.put(append(out, byte(asideKinds[a].kind), 1))
		}
		return out
	})
	exports := m.ownExports(l.fuel)
	w.section(exportSection, len(exports), func(out []byte) []byte {
		for _, e := range exports {
			out = append(putName(out, e.Name), byte(e.Kind))
			if e.Kind == Func {
				e.Index = l.outside(e.Index)
			}
			out = putU32(out, e.Index)
		}
		return out
	})
	if m.start != nil {
		w.part(startSection, putU32(nil, l.outside(*m.start)))
	}
	w.section(elementSection, len(m.elements), func(out []byte) []byte {
		for _, e := range m.elements {
			out = putU32(e.offset.put(append(out, 0)), uint32(len(e.functions)))
			for _, f := range e.functions {
				out = putU32(out, l.inside(f))
			}
		}
		return out
	})
	if m.counted != nil {
		w.part(dataCountSection, putU32(nil, *m.counted))
	}
	w.section(codeSection, l.functions(), func(out []byte) []byte { return l.putOwn(append(out, code...)) })
	w.section(dataSection, len(m.data), func(out []byte) []byte {
		for _, d := range m.data {
			if !d.active {
				out = append(out, 1)
			} else {
				out = d.offset.put(append(out, 0))
			}
			out = putPart(out, d.bytes)
		}
		return out
	})
	if len(m.names) > 0 {
		w.part(customSection, w.functionNames())
	}
	return w.out, nil
}

// ownExports are the module's exports with those of its state.
func (m *Module) ownExports(fuel uint32) []Export {
	out := slices.Clone(m.Exports)
	for i, g := range m.globals {
		if g.mutable {
			out = append(out, Export{Name: globalPrefix + strconv.Itoa(i), Kind: Global, Index: uint32(i)})
		}
	}
	return append(out, Export{Name: FuelGlobal, Kind: Global, Index: fuel})
}

// State names the exports of a metered module that are its state beside its memory, in
// the order of their numbers.
func (m *Module) State() []string {
	var out []string
	for i, g := range m.globals {
		if g.mutable {
			out = append(out, globalPrefix+strconv.Itoa(i))
		}
	}
	return out
}

// A writer writes the sections of a metered module.
type writer struct {
	m   *Module
	out []byte
}

func (w *writer) part(id byte, text []byte) { w.out = putPart(append(w.out, id), text) }

// section writes a section of so many things, if there are any.
func (w *writer) section(id byte, n int, put func([]byte) []byte) {
	if n > 0 {
		w.part(id, put(putU32(nil, uint32(n))))
	}
}

// shifted is a function's index behind the import of ours.
func (w *writer) shifted(function uint32) uint32 {
	if uint64(function) >= uint64(len(w.m.Imports)) {
		return function + 1
	}
	return function
}

func (w *writer) functionNames() []byte {
	names := putU32(nil, uint32(len(w.m.names)))
	for _, n := range w.m.names {
		names = putName(putU32(names, w.shifted(n.index)), n.name)
	}
	return putPart(append(putName(nil, "name"), 1), names)
}

func (t FuncType) put(out []byte) []byte {
	out = append(out, 0x60)
	for _, list := range [][]ValueType{t.Params, t.Results} {
		out = putU32(out, uint32(len(list)))
		for _, v := range list {
			out = append(out, byte(v))
		}
	}
	return out
}

func (c constant) put(out []byte) []byte { return append(append(append(out, c.op), c.bits...), opEnd) }

func (s Size) put(out []byte) []byte {
	out = putU32(append(out, flagByte(s.Bounded)), s.Min)
	if s.Bounded {
		out = putU32(out, s.Max)
	}
	return out
}

func flagByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}
