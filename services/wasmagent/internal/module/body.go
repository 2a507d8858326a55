package module

import (
	"errors"
	"fmt"
	"math/bits"
)

// A bodyWriter writes bodies, one after the other.
type bodyWriter struct {
	fuel, refill uint32
	// aside are the globals for what is put aside, behind those of the fuel and the stack, by
	// their kinds' places in asideKinds; numbers has theirs of each kind. The engine reads every
	// global again behind every call, so there are no more than some function needs.
	aside   []int
	numbers [len(asideKinds)][]uint32
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
	// kinds are the types of its first locals.
	kinds []ValueType

	points []point
	frames []int
	// loops has, for each block that is open, the mark of the innermost loop around its code.
	loops []int
	read  instruction
}

// A mark is a place in code, behind the instruction that makes it one.
type mark struct {
	at int
	op byte
	// cost is what there is to be charged until the next mark.
	cost int64
	// sets has, of a loop, a bit for each of the first locals that it sets.
	sets uint64
}

// A point is where fuel is charged.
type point struct {
	at   int
	cost int64
	// refills says that it is looked whether there was enough, and aside which of the first
	// locals are put aside where there was not.
	refills bool
	aside   uint64
}

const (
	// entry is the mark at the start of a function, in place of an instruction.
	entry = 0xff
	// nowhere is the point of code that can't be reached, and noLoop the mark where there is none.
	nowhere, noLoop = -1, -1
)

// writeAll writes the bodies of all functions.
func (b *bodyWriter) writeAll(m *Module, grain int64) ([]byte, error) {
	var out []byte
	for i := range m.bodies {
		text, err := b.write(m, i, grain)
		if err == nil {
			out = putPart(out, text)
			err = checkLength(out)
		}
		if err != nil {
			return nil, fmt.Errorf("function %d: %w", len(m.Imports)+i, err)
		}
	}
	return out, nil
}

// checkLength refuses code that has become too long.
func checkLength(code []byte) error {
	if len(code) > maxMetered {
		return fmt.Errorf("%w: more than %d bytes of code once it counts its work", ErrTooMuch, maxMetered)
	}
	return nil
}

func (b *bodyWriter) write(m *Module, i int, grain int64) ([]byte, error) {
	f := m.bodies[i]
	params := m.types[m.typeOf[len(m.Imports)+i]].Params
	b.kinds = append(b.kinds[:0], params[:min(len(params), maxAside)]...)
	declared := 0
	for _, run := range f.locals {
		declared += int(run.n)
		for range min(int(run.n), maxAside-len(b.kinds)) {
			b.kinds = append(b.kinds, run.kind)
		}
	}
	s := scope{m: m, locals: uint32(len(params) + declared), shift: 1}
	r := *f.code
	if err := b.readCode(s, &r); err != nil {
		return nil, err
	}
	b.placePoints(int64(1+declared), grain)
	b.points[0].aside = 1<<min(len(params), maxAside) - 1

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
		if err := checkLength(out); err != nil { // a few bytes of a loop may become hundreds
			return nil, err
		}
	}
	return append(out, b.code[at:]...), nil
}

// readCode reads the code of a function to its end.
func (b *bodyWriter) readCode(s scope, r *reader) error {
	b.code, b.marks, b.bulk, b.calls = b.code[:0], append(b.marks[:0], mark{op: entry}), false, false
	b.values, b.loops = 0, b.loops[:0]
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
			within := b.loop()
			if i.op == opLoop {
				within = len(b.marks) // which it becomes below
			}
			b.loops = append(b.loops, within)
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
			ended := b.loop()
			b.loops = b.loops[:len(b.loops)-1]
			if outer := b.loop(); outer != ended && outer != noLoop {
				b.marks[outer].sets |= b.marks[ended].sets
			}
		case opLocalSet, opLocalTee:
			if in := b.loop(); in != noLoop && i.local < maxAside {
				b.marks[in].sets |= 1 << i.local
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

// loop is the mark of the innermost loop that is open.
func (b *bodyWriter) loop() int {
	if len(b.loops) == 0 {
		return noLoop
	}
	return b.loops[len(b.loops)-1]
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
			b.points = append(b.points, point{at: m.at, refills: true, cost: 1, aside: m.sets})
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
	return b.refilled(out, local, p.aside)
}

// refilled writes how the fuel on the stack is kept, and refilled where it is below zero.
//
// The engine keeps in memory what lives across a call, in the whole function: a loop would
// pay for that in each turn. So what it changes is put into globals before that call, and
// taken from there behind it: then nothing of it lives across. The call stands in the else,
// since the engine lays out, and gives registers to, what comes first as what is run most.
func (b *bodyWriter) refilled(out []byte, local uint32, aside uint64) []byte {
	out = putU32(append(out, opLocalTee), local)
	out = append(out, opI64Const, 0, opI64GeS, opIf, 0x40, opElse)
	return append(b.ask(out, local, aside), opEnd)
}

// ask writes how the host is asked for fuel.
func (b *bodyWriter) ask(out []byte, local uint32, aside uint64) []byte {
	out = b.move(out, aside, opLocalGet, opGlobalSet)
	out = putU32(append(out, opLocalGet), local)
	out = putU32(append(out, opCall), b.refill)
	out = putU32(append(out, opLocalTee), local)
	out = putU32(append(out, opGlobalSet), b.fuel)
	return b.move(out, aside, opGlobalGet, opLocalSet)
}

// move writes how locals go to the globals for what is put aside, or come from there.
func (b *bodyWriter) move(out []byte, locals uint64, from, to byte) []byte {
	var taken [len(asideKinds)]int
	for ; locals != 0; locals &= locals - 1 {
		local := bits.TrailingZeros64(locals)
		kind := 0
		for kind < len(asideKinds) && asideKinds[kind].kind != b.kinds[local] {
			kind++
		}
		if kind == len(asideKinds) || taken[kind] == asideOfKind {
			continue // it lives across the call
		}
		if taken[kind] == len(b.numbers[kind]) {
			b.numbers[kind] = append(b.numbers[kind], b.fuel+2+uint32(len(b.aside)))
			b.aside = append(b.aside, kind)
		}
		global := b.numbers[kind][taken[kind]]
		taken[kind]++
		one, other := uint32(local), global
		if from == opGlobalGet {
			one, other = global, uint32(local)
		}
		out = putU32(append(putU32(append(out, from), one), to), other)
	}
	return out
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
	out = append(out, opI32Const, 0, opI32GeS, opIf, 0x40, opElse)
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
	out = putU32(append(out, opLocalTee), local)
	out = append(out, opI64Const, 0, opI64LtS, opIf, 0x40) // as long as ever: a frame weighs what its code does
	return append(b.ask(out, local, 0), opEnd)
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
