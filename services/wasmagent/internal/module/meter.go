package module

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// MeterVersion says how work is counted. Fuel of two versions can't be compared.
const MeterVersion = 2

// Names that a metered module has beside its own. No guest may export such a one.
const (
	ownPrefix = "sluice."
	// RefillModule is the module of [RefillName].
	RefillModule = "sluice"
	// RefillName is the function that is called once fuel is below zero: it gets how much
	// there is, and returns how much there is from then on. Both are an i64.
	RefillName = "refill"
	// FuelGlobal is what is left, an i64.
	FuelGlobal = ownPrefix + "fuel"
	// StackGlobal is how much of the stack is left, an i32: whoever calls a function of the
	// guest sets it to [MaxStack] before.
	StackGlobal = ownPrefix + "stack"
	// StackSpent is what [RefillName] gets where the stack is spent: it must not return.
	StackSpent = math.MinInt64
	// globalPrefix is before the number of each global that can change: they are the
	// guest's state beside its memory.
	globalPrefix = ownPrefix + "global."
)

const (
	// MaxStack is how large the stack may be, in bytes as they are counted here: each function
	// that calls others takes of it what its frame may be at the most.
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

// Metered returns the module written anew so that it counts its instructions: each takes
// one of the fuel, what fills or copies memory one more for each 8 bytes, and each page
// that the memory grows by 8,192. Where a branch skips less than some instructions they
// are charged all the same. Work is charged before it is done, at the start of functions,
// loops and longer branches; at the start of functions and loops, and of what fills or
// copies, [RefillName] is called where fuel is below zero. Functions that call others take
// of the stack as long as they run, up to [MaxStack]. The same module on the same
// inputs takes the same fuel, whatever is refilled at a time. Beside that it computes what
// it did. Errors: those of [Parse].
func (m *Module) Metered() ([]byte, error) { return m.metered(grain) }

func (m *Module) metered(grain int64) ([]byte, error) {
	w := &writer{m: m, out: slices.Clone(header)}
	fuel, refill := uint32(len(m.globals)), uint32(len(m.Imports)) // the stack is behind the fuel
	w.section(typeSection, len(m.types)+1, func(out []byte) []byte {
		for _, t := range m.types {
			out = t.put(out)
		}
		return FuncType{Params: []ValueType{I64}, Results: []ValueType{I64}}.put(out)
	})
	w.section(importSection, len(m.Imports)+1, func(out []byte) []byte {
		for i, f := range m.Imports {
			out = append(putName(putName(out, f.Module), f.Name), byte(Func))
			out = putU32(out, m.typeOf[i])
		}
		out = append(putName(putName(out, RefillModule), RefillName), byte(Func))
		return putU32(out, uint32(len(m.types)))
	})
	w.section(functionSection, len(m.bodies), func(out []byte) []byte {
		for _, t := range m.typeOf[len(m.Imports):] {
			out = putU32(out, t)
		}
		return out
	})
	w.section(tableSection, len(m.tables), func(out []byte) []byte {
		for _, t := range m.tables {
			out = t.put(append(out, 0x70))
		}
		return out
	})
	if m.Memory != nil {
		w.section(memorySection, 1, m.Memory.put)
	}
	w.section(globalSection, len(m.globals)+2, func(out []byte) []byte {
		for _, g := range m.globals {
			out = g.init.put(append(out, byte(g.kind), flagByte(g.mutable)))
		}
		out = constant{op: opI64Const, bits: []byte{0}}.put(append(out, byte(I64), 1))
		return constant{op: opI32Const, bits: putSigned(nil, MaxStack)}.put(append(out, byte(I32), 1))
	})
	exports := m.ownExports(fuel)
	w.section(exportSection, len(exports), func(out []byte) []byte {
		for _, e := range exports {
			out = append(putName(out, e.Name), byte(e.Kind))
			if e.Kind == Func {
				e.Index = w.shifted(e.Index)
			}
			out = putU32(out, e.Index)
		}
		return out
	})
	if m.start != nil {
		w.part(startSection, putU32(nil, w.shifted(*m.start)))
	}
	w.section(elementSection, len(m.elements), func(out []byte) []byte {
		for _, e := range m.elements {
			out = putU32(e.offset.put(append(out, 0)), uint32(len(e.functions)))
			for _, f := range e.functions {
				out = putU32(out, w.shifted(f))
			}
		}
		return out
	})
	if m.counted != nil {
		w.part(dataCountSection, putU32(nil, *m.counted))
	}
	var err error
	w.section(codeSection, len(m.bodies), func(out []byte) []byte {
		var b bodyWriter
		for i := range m.bodies {
			var text []byte
			if text, err = b.write(m, i, fuel, refill, grain); err != nil {
				err = fmt.Errorf("function %d: %w", len(m.Imports)+i, err)
				return nil
			}
			if out = putPart(out, text); len(out) > maxMetered {
				err = fmt.Errorf("%w: more than %d bytes of code once it counts its work", ErrTooMuch, maxMetered)
				return nil
			}
		}
		return out
	})
	if err != nil {
		return nil, err
	}
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
	return append(out, Export{Name: FuelGlobal, Kind: Global, Index: fuel}, Export{Name: StackGlobal, Kind: Global, Index: fuel + 1})
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

// A bodyWriter writes bodies, one after the other.
type bodyWriter struct {
	fuel, refill uint32
	// code is the body's code before it is charged, and marks where in it control comes
	// from elsewhere or may go elsewhere.
	code  []byte
	marks []mark
	// bulk says that it needs the locals for that, and calls that it calls functions, those
	// too that loops call for fuel, and so one for the stack. values is how many values its
	// frame may keep: its locals, those that calls and blocks take and give, and in each loop
	// its locals anew.
	bulk, calls bool
	values      int64

	points []point
	frames []int
	read   instruction
}

// A mark is a place in code, behind the instruction that makes it one.
type mark struct {
	at int
	op byte
	// cost is what there is to be charged until the next mark.
	cost int64
}

// A point is where fuel is charged.
type point struct {
	at   int
	cost int64
	// refills says that it is looked whether there was enough.
	refills bool
}

const (
	// entry is the mark at the start of a function, in place of an instruction.
	entry = 0xff
	// nowhere is the point of code that can't be reached.
	nowhere = -1
)

func (b *bodyWriter) write(m *Module, i int, fuel, refill uint32, grain int64) ([]byte, error) {
	f := m.bodies[i]
	locals := len(m.types[m.typeOf[len(m.Imports)+i]].Params)
	declared := 0
	for _, run := range f.locals {
		declared += int(run.n)
	}
	b.fuel, b.refill = fuel, refill
	s := scope{m: m, locals: uint32(locals + declared), shift: 1}
	r := *f.code
	if err := b.readCode(s, &r); err != nil {
		return nil, err
	}
	b.placePoints(int64(1+declared), grain)

	runs := len(f.locals) + 1
	if b.bulk || b.calls {
		runs++
	}
	out := putU32(nil, uint32(runs))
	for _, run := range f.locals {
		out = append(putU32(out, run.n), byte(run.kind))
	}
	out = append(putU32(out, 1), byte(I64))
	if b.bulk || b.calls {
		out = append(putU32(out, 3), byte(I32))
	}
	at := 0
	for _, p := range b.points {
		out = append(out, b.code[at:p.at]...)
		out = b.charge(out, p, s.locals)
		if p.at == 0 && b.calls {
			out = b.enter(out, s.locals, frameBytes+valueBytes*(b.values+int64(s.locals))+codeBytes*int64(len(b.code)))
		}
		at = p.at
	}
	return append(out, b.code[at:]...), nil
}

// readCode reads the code of a function to its end.
func (b *bodyWriter) readCode(s scope, r *reader) error {
	b.code, b.marks, b.bulk, b.calls = b.code[:0], append(b.marks[:0], mark{op: entry}), false, false
	b.values = 0
	for depth := 0; ; {
		i := &b.read
		s.next(r, i)
		if r.err != nil {
			return wrap(r.err)
		}
		cost := int64(1)
		b.values += int64(i.values)
		if i.op == opLoop {
			b.values += int64(s.locals) + 4
			b.calls = true
		}
		switch i.op {
		case opBlock, opLoop, opIf:
			if depth++; depth > maxNesting {
				return fmt.Errorf("%w: %d nested blocks; there may be %d", ErrTooMuch, depth, maxNesting)
			}
		case opElse:
			if depth == 0 {
				return fmt.Errorf("%w: an else without an if", ErrMalformed)
			}
		case opEnd:
			if depth--; depth < 0 {
				b.code = append(b.keep(b.code, s.locals), opEnd)
				if !r.done() {
					return fmt.Errorf("%w: the function goes on behind its end", ErrMalformed)
				}
				return nil
			}
		case opReturn, opCall, opCallIndirect:
			b.code = b.keep(b.code, s.locals)
		case opBr, opBrIf, opBrTable:
			if int(i.label) >= depth { // it may leave the function
				b.code = b.keep(b.code, s.locals)
			}
		case opBulk:
			if i.sub >= opMemoryInit {
				b.bulk = true
				b.code = b.chargeBytes(b.code, s.locals)
			}
		case opMemoryGrow:
			b.bulk = true
			b.code = b.grow(b.code, s.locals)
			i.text = i.text[:0] // written already
		}
		b.code = append(b.code, i.text...)
		switch i.op {
		case opCall, opCallIndirect:
			b.code = putU32(append(b.code, opGlobalGet), b.fuel)
			b.code = putU32(append(b.code, opLocalSet), s.locals)
			b.calls = true
			b.code = putU32(append(b.code, opLocalGet), s.locals+stackLocal)
			b.code = putU32(append(b.code, opGlobalSet), b.fuel+1)
		case opBlock, opLoop, opElse, opEnd:
			cost = 0
		}
		b.marks[len(b.marks)-1].cost += cost
		switch i.op {
		case opBlock, opLoop, opIf, opElse, opEnd, opBr, opBrIf, opBrTable, opReturn, opUnreachable:
			b.marks = append(b.marks, mark{at: len(b.code), op: i.op})
		}
	}
}

// wrap says of an error of reading that it is one of the module.
func wrap(err error) error {
	if errors.Is(err, ErrNotOffered) || errors.Is(err, ErrTooMuch) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrMalformed, err)
}

// placePoints decides where what is charged. What is between two marks is charged where
// it begins, or at a point that all have passed who come there, once for each time: one
// before the branch, or before the block that ends. A loop has one of its own.
func (b *bodyWriter) placePoints(call, grain int64) {
	b.points, b.frames = append(b.points[:0], point{refills: true, cost: call}), b.frames[:0]
	now := 0
	for _, m := range b.marks {
		own := m.cost >= grain
		switch m.op {
		case opBlock:
			b.frames = append(b.frames, now)
			own = false
		case opLoop:
			b.frames = append(b.frames, now)
			now = len(b.points)
			b.points = append(b.points, point{at: m.at, refills: true, cost: 1})
			own = false
		case opIf:
			b.frames = append(b.frames, now)
		case opElse:
			now = b.frames[len(b.frames)-1]
		case opEnd:
			now = b.frames[len(b.frames)-1]
			b.frames = b.frames[:len(b.frames)-1]
		case opBr, opBrTable, opReturn, opUnreachable:
			now, own = nowhere, false
		case entry:
			own = false
		}
		if own {
			now = len(b.points)
			b.points = append(b.points, point{at: m.at})
		}
		if now != nowhere {
			b.points[now].cost += m.cost
		}
	}
}

// In a function the fuel is in a local, the first behind its own: that costs a loop next
// to nothing. It is in the global wherever another function, or the host, looks at it.

// keep writes the fuel to the global.
func (b *bodyWriter) keep(out []byte, local uint32) []byte {
	return putU32(append(putU32(append(out, opLocalGet), local), opGlobalSet), b.fuel)
}

// charge writes a point.
func (b *bodyWriter) charge(out []byte, p point, local uint32) []byte {
	if p.at == 0 {
		out = putU32(append(out, opGlobalGet), b.fuel)
	} else {
		out = putU32(append(out, opLocalGet), local)
	}
	out = append(putSigned(append(out, opI64Const), p.cost), opI64Sub)
	if !p.refills {
		return putU32(append(out, opLocalSet), local)
	}
	return b.refilled(out, local)
}

// refilled writes how the fuel on the stack is kept, and refilled where it is below zero.
func (b *bodyWriter) refilled(out []byte, local uint32) []byte {
	out = putU32(append(out, opLocalTee), local)
	out = append(out, opI64Const, 0, opI64LtS, opIf, 0x40)
	out = putU32(append(out, opLocalGet), local)
	out = putU32(append(out, opCall), b.refill)
	out = putU32(append(out, opLocalTee), local)
	out = putU32(append(out, opGlobalSet), b.fuel)
	return append(out, opEnd)
}

// stackLocal is where a function keeps how much of the stack is left behind its own frame,
// behind the local of the fuel. It says so again behind each call: so a function that ends
// has nothing to give back.
const stackLocal = 3

// enter takes a frame of the stack.
func (b *bodyWriter) enter(out []byte, local uint32, bytes int64) []byte {
	out = putU32(append(out, opGlobalGet), b.fuel+1)
	out = append(putSigned(append(out, opI32Const), min(bytes, MaxStack+1)), opI32Sub)
	out = putU32(append(out, opLocalTee), local+stackLocal)
	out = append(out, opI32Const, 0, opI32LtS, opIf, 0x40)
	out = putSigned(append(out, opI64Const), StackSpent)
	out = putU32(append(out, opCall), b.refill)
	out = append(out, opDrop, opUnreachable, opEnd)
	out = putU32(append(out, opLocalGet), local+stackLocal)
	return putU32(append(out, opGlobalSet), b.fuel+1)
}

// chargeBytes charges so many bytes as the number on the stack says, and leaves it there.
func (b *bodyWriter) chargeBytes(out []byte, local uint32) []byte {
	out = putU32(append(out, opLocalTee), local+1)
	out = putU32(append(out, opLocalGet), local)
	out = putU32(append(out, opLocalGet), local+1)
	out = append(out, opI64ExtendU, opI64Const, bytesPerFuel, opI64ShrU, opI64Sub)
	return b.refilled(out, local)
}

// grow writes how the memory grows by so many pages as the stack says, and charges those
// that it got.
func (b *bodyWriter) grow(out []byte, local uint32) []byte {
	wanted, was := local+1, local+2
	out = putU32(append(out, opLocalTee), wanted)
	out = append(out, opMemoryGrow, 0)
	out = putU32(append(out, opLocalTee), was)
	out = append(out, opI32Const, 0x7f, opI32Ne, opIf, 0x40)
	out = putU32(append(out, opLocalGet), local)
	out = putU32(append(out, opLocalGet), wanted)
	out = append(out, opI64ExtendU, opI64Const, fuelPerPage, opI64Shl, opI64Sub)
	out = putU32(append(out, opLocalSet), local)
	out = append(out, opEnd)
	return putU32(append(out, opLocalGet), was)
}
