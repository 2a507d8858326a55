package wasmmeter

import (
	"math"
	"slices"
	"strconv"
)

// MeterVersion is the version of the rules for counting fuel. Amounts of fuel can be compared only if they were counted
// by the same version.
const MeterVersion = 4

// The meter adds these names to a module. A guest must not export names that begin with ownPrefix.
const (
	ownPrefix = "sluice."
	// RefillModule is the name of the module from which [RefillName] is imported.
	RefillModule = "sluice"
	// RefillName is the imported function that the metered module calls when its fuel is below zero. The function's
	// parameter is the remaining fuel, and its result is the fuel with which the module continues. Both are i64 values
	// with an absolute value below 2^46.
	RefillName = "refill"
	// FuelGlobal is the exported global that contains the remaining fuel, an i64. It is valid while the guest calls the
	// host, and after the guest has returned. While the guest itself runs, the global is 0, so a guest that traps is
	// charged for all the fuel that it has received.
	FuelGlobal = ownPrefix + "fuel"
	// StackSpent is the argument of [RefillName] if the stack is used up. In that case, the refill function must not
	// return.
	StackSpent = math.MinInt64
	// globalPrefix is the prefix of the export names of the guest's mutable globals. The number of the global follows
	// the prefix. The mutable globals and the memory are the guest's state.
	globalPrefix = ownPrefix + "global."
)

const (
	// MaxStack is the size of the stack, in bytes. The use of the stack is not measured in the engine but computed. A
	// function that calls other functions or has loops uses the maximum size of its frame, as this package computes it,
	// until the function returns. A function that the host calls begins with an empty stack.
	MaxStack = 4 << 20
	// frameBytes is the fixed size of each frame. valueBytes is the size of each value in a frame. codeBytes is the
	// space for intermediate values per byte of code. All sizes are in bytes.
	frameBytes, valueBytes, codeBytes = 128, 16, 4
)

// These are the rules for charging fuel.
const (
	// minSeparateCharge is the lowest cost for which the code after a branch is charged separately, at the beginning of
	// that code. A lower cost is charged before the branch.
	minSeparateCharge = 4
	// bytesPerFuel is the base-2 logarithm of the number of bytes that can be filled or copied per unit of fuel.
	// fuelPerPage is the base-2 logarithm of the fuel for each page by which the memory grows.
	bytesPerFuel, fuelPerPage = 3, 13
)

// Metered returns the module with additional code that counts the executed instructions. Each instruction costs one
// unit of fuel. Filling or copying memory costs one additional unit per 8 bytes, and growing memory costs 8,192
// additional units per page. If a branch skips fewer than minSeparateCharge instructions, the skipped instructions are
// charged, too.
//
// Go's compiler turns each function into a loop that selects the next block of code by a number. Where possible,
// Metered replaces jumps through this loop with direct branches, which cost nothing for the selection.
//
// Fuel is charged in advance, at the beginning of functions, loops and longer branches. The metered module calls
// [RefillName] if the fuel is below zero at the beginning of a function or a loop, or before memory is filled or
// copied. Functions that call other functions or have loops use stack while they run, up to [MaxStack].
//
// The same module with the same inputs always uses the same fuel, however large the refills are. The metered module
// computes the same results as the original. Metered returns the errors of [Parse].
func (m *Module) Metered() ([]byte, error) { return m.metered(minSeparateCharge) }

func (m *Module) metered(minSeparate int64) ([]byte, error) {
	l := layoutOf(m)
	b := bodyWriter{scope: scope{layout: l}}
	code, err := b.putBodies(minSeparate)
	if err != nil {
		return nil, err
	}
	w := &writer{m: m, out: slices.Clone(header)}
	w.section(typeSection, 1+3*len(m.types), l.putTypes)
	w.section(importSection, len(m.Imports)+1, l.putImports)
	w.section(functionSection, l.functions(), l.putFunctions)
	w.section(tableSection, len(m.tables), m.putTables)
	if m.Memory != nil {
		w.section(memorySection, 1, m.Memory.put)
	}
	w.section(globalSection, len(m.globals)+1+len(b.savedGlobals), b.putGlobals)
	exports := m.ownExports(l.fuel)
	w.section(exportSection, len(exports), func(out []byte) []byte { return l.putExports(out, exports) })
	if m.start != nil {
		w.part(startSection, putU32(nil, l.hostIndex(*m.start)))
	}
	w.section(elementSection, len(m.elements), l.putElements)
	if m.dataCount != nil {
		w.part(dataCountSection, putU32(nil, *m.dataCount))
	}
	w.section(codeSection, l.functions(), func(out []byte) []byte { return l.putWrappers(append(out, code...)) })
	w.section(dataSection, len(m.data), m.putData)
	if len(m.names) > 0 {
		w.part(customSection, w.functionNames())
	}
	return w.out, nil
}

func (l layout) putImports(out []byte) []byte {
	for i, f := range l.m.Imports {
		out = append(putName(putName(out, f.Module), f.Name), byte(Func))
		out = putU32(out, l.m.typeOf[i])
	}
	out = append(putName(putName(out, RefillModule), RefillName), byte(Func))
	return putU32(out, l.refillType())
}

func (m *Module) putTables(out []byte) []byte {
	for _, t := range m.tables {
		out = t.put(append(out, 0x70))
	}
	return out
}

// putGlobals encodes the guest's globals, the fuel global, and the globals in which locals are saved during refills.
func (b *bodyWriter) putGlobals(out []byte) []byte {
	for _, g := range b.m.globals {
		out = g.init.put(append(out, byte(g.kind), flagByte(g.mutable)))
	}
	out = constant{op: opI64Const, bits: []byte{0}}.put(append(out, byte(I64), 1))
	for _, kind := range b.savedGlobals {
		out = savedKinds[kind].zero.put(append(out, byte(savedKinds[kind].kind), 1))
	}
	return out
}

func (l layout) putExports(out []byte, exports []Export) []byte {
	for _, e := range exports {
		out = append(putName(out, e.Name), byte(e.Kind))
		if e.Kind == Func {
			e.Index = l.hostIndex(e.Index)
		}
		out = putU32(out, e.Index)
	}
	return out
}

func (l layout) putElements(out []byte) []byte {
	for _, e := range l.m.elements {
		out = putU32(e.offset.put(append(out, 0)), uint32(len(e.functions)))
		for _, f := range e.functions {
			out = putU32(out, l.guestIndex(f))
		}
	}
	return out
}

func (m *Module) putData(out []byte) []byte {
	for _, d := range m.data {
		if d.active {
			out = d.offset.put(append(out, 0))
		} else {
			out = append(out, 1)
		}
		out = putPart(out, d.bytes)
	}
	return out
}

// ownExports returns the guest's exports, followed by the exports of the guest's mutable globals and of the fuel.
func (m *Module) ownExports(fuel uint32) []Export {
	out := slices.Clone(m.Exports)
	for i, g := range m.globals {
		if g.mutable {
			out = append(out, Export{Name: globalPrefix + strconv.Itoa(i), Kind: Global, Index: uint32(i)})
		}
	}
	return append(out, Export{Name: FuelGlobal, Kind: Global, Index: fuel})
}

// StateGlobals returns the export names of the mutable globals of the metered module, in the order of their numbers.
func (m *Module) StateGlobals() []string {
	var out []string
	for i, g := range m.globals {
		if g.mutable {
			out = append(out, globalPrefix+strconv.Itoa(i))
		}
	}
	return out
}

type writer struct {
	m   *Module
	out []byte
}

func (w *writer) part(id byte, text []byte) { w.out = putPart(append(w.out, id), text) }

// section writes a section with n elements. If n is 0, it writes nothing.
func (w *writer) section(id byte, n int, put func([]byte) []byte) {
	if n > 0 {
		w.part(id, put(putU32(nil, uint32(n))))
	}
}

// shiftedFunction returns the index of a function in the metered module, where one more import comes before the guest's
// own functions.
func (w *writer) shiftedFunction(function uint32) uint32 {
	if uint64(function) >= uint64(len(w.m.Imports)) {
		return function + 1
	}
	return function
}

func (w *writer) functionNames() []byte {
	names := putU32(nil, uint32(len(w.m.names)))
	for _, n := range w.m.names {
		names = putName(putU32(names, w.shiftedFunction(n.index)), n.name)
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
	out = putU32(append(out, flagByte(s.HasMax)), s.Min)
	if s.HasMax {
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
