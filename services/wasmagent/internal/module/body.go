package module

import (
	"errors"
	"fmt"
	"slices"
)

// A bodyWriter encodes the metered bodies of functions, one after the other.
type bodyWriter struct {
	scope
	// left is the local with what is left of fuel and stack. temp is the first of two temporary locals.
	left, temp uint32
	// frame is the size of the function's frame on the stack.
	frame int64
	// aside are the globals for saved locals, which follow the global of the fuel: for each, the index of its kind in
	// asideKinds. numbers has the indexes of the globals of each kind. The engine reads every global again after every
	// call, so there are only as many as a function needs.
	aside   []int
	numbers [len(asideKinds)][]uint32
	// code is the code of the body before charges are added. marks are the places in it where control comes from
	// elsewhere or may go elsewhere.
	code  []byte
	marks []mark
	// temps is true if the function needs the temporary locals. calls is true if the function calls others, or has
	// loops, which call for fuel, so that it uses stack. values is the number of values that its frame may have: its
	// locals, those that calls and blocks take and return, and for each loop its locals once more.
	temps, calls bool
	values       int64
	// kinds are the types of its first locals.
	kinds []ValueType

	points []point
	frames []int
	uses   uses
	jumps  jumps
	read   instruction
}

// A mark is a place in code, after the instruction that causes it.
type mark struct {
	at int
	op byte
	// takes is true if a loop takes values.
	takes bool
	// cost is the cost of the code up to the next mark.
	cost int64
}

// A point is a place where fuel is charged, at a mark. A point with the op opReturn comes before the return, and writes
// what is left.
type point struct {
	mark
	// looks is true if the point checks whether the fuel was sufficient. aside are the first locals that are saved if
	// it was not.
	looks bool
	aside uint64
}

const (
	// entry is the op of the mark at the start of a function.
	entry = 0xff
	// nowhere is the point of unreachable code.
	nowhere = -1
)

// writeAll encodes the bodies of all functions.
func (b *bodyWriter) writeAll(grain int64) ([]byte, error) {
	var out []byte
	for i := range b.m.bodies {
		text, err := b.write(i, grain)
		if err == nil {
			out = putPart(out, text)
			err = checkLength(out)
		}
		if err != nil {
			return nil, fmt.Errorf("function %d: %w", len(b.m.Imports)+i, err)
		}
	}
	return out, nil
}

// checkLength returns an error if the code is too long.
func checkLength(code []byte) error {
	if len(code) > maxMetered {
		return fmt.Errorf("%w: more than %d bytes of metered code", ErrTooMuch, maxMetered)
	}
	return nil
}

func (b *bodyWriter) write(i int, grain int64) ([]byte, error) {
	f, of := b.m.bodies[i], b.m.typeOf[len(b.m.Imports)+i]
	params := b.m.types[of].Params
	b.kinds = append(b.kinds[:0], params[:min(len(params), maxAside)]...)
	declared := 0
	for _, run := range f.locals {
		declared += int(run.n)
		for range min(int(run.n), maxAside-len(b.kinds)) {
			b.kinds = append(b.kinds, run.kind)
		}
	}
	b.params, b.locals = uint32(len(params)), uint32(len(params)+declared)
	b.left, b.temp = b.params, b.moved(b.locals)
	if err := b.readCode(*f.code, nil); err != nil {
		return nil, err
	}
	if loops := b.jumps.learn(); loops != nil {
		if err := b.readCode(*f.code, loops); err != nil {
			return nil, err
		}
	}
	b.frame = 0
	if b.calls {
		b.frame = frameOf(b.values+int64(b.locals), len(b.code))
	}
	b.placePoints(int64(1+declared), grain)
	b.points[0].aside = 1<<min(len(params), maxAside) - 1

	runs := len(f.locals)
	if b.temps {
		runs++
	}
	out := putU32(nil, uint32(runs))
	for _, run := range f.locals {
		out = append(putU32(out, run.n), byte(run.kind))
	}
	if b.temps {
		out = append(putU32(out, 2), byte(I32))
	}
	out = b.putBlock(out, of)
	at := 0
	for _, p := range b.points {
		out = append(out, b.code[at:p.at]...)
		out = b.charge(out, p)
		at = p.at
		if err := checkLength(out); err != nil { // a few bytes of a loop may become hundreds
			return nil, err
		}
	}
	out = append(out, b.code[at:]...)
	return append(b.leave(out), opEnd), nil
}

// readCode reads the code of a function to its end. loops is nil in the first pass and known in the second.
func (b *bodyWriter) readCode(code reader, loops [][]int) error {
	r := &code
	b.code, b.marks, b.temps, b.calls = b.code[:0], append(b.marks[:0], mark{op: entry}), false, false
	b.values, b.uses = 0, uses{open: b.uses.open[:0], sets: b.uses.sets[:0]}
	b.jumps.begin(loops)
	for depth := 0; ; {
		i := &b.read
		b.next(r, i)
		if r.err != nil {
			return wrap(r.err)
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
				b.code = append(b.code, opEnd)
				if !r.done() {
					return fmt.Errorf("%w: the function has code after its end", ErrMalformed)
				}
				return nil
			}
		case opBr, opBrIf, opBrTable: // the engine would accept one more block, which the meter adds
			if label := slices.Max(i.labels); int64(label) > int64(depth) {
				return fmt.Errorf("%w: there is no block %d", ErrMalformed, label)
			}
		}
		b.uses.follow(i)
		b.jumps.follow(i)
		b.put(i)
		b.mark(i)
	}
}

// put encodes an instruction with the code that its metering needs.
func (b *bodyWriter) put(i *instruction) {
	switch {
	case i.op == opCall:
		b.code = putU32(append(b.code, opLocalGet), b.left)
	case i.op == opCallIndirect: // the index of the called function comes after the argument
		b.code = putU32(append(b.code, opLocalSet), b.temp)
		b.code = putU32(append(b.code, opLocalGet), b.left)
		b.code = putU32(append(b.code, opLocalGet), b.temp)
		b.temps = true
	case i.op == opBulk && i.sub >= opMemoryInit:
		b.code, b.temps = b.chargeBytes(b.code), true
	case i.op == opMemoryGrow:
		b.code, b.temps = b.grow(b.code), true
		return // grow includes the instruction
	}
	b.code = append(b.code, i.text...)
	if i.op == opCall || i.op == opCallIndirect {
		b.code = putU32(append(b.code, opLocalSet), b.left)
		b.calls = true
	}
}

// mark counts the cost of an instruction, and adds a mark if control comes from or goes elsewhere.
func (b *bodyWriter) mark(i *instruction) {
	b.values += int64(i.values)
	if i.op == opLoop {
		b.values += int64(b.locals) + 4
		b.calls = true
	}
	switch i.op {
	case opBlock, opLoop, opElse, opEnd:
	default:
		b.marks[len(b.marks)-1].cost++
	}
	switch i.op {
	case opBlock, opLoop, opIf, opElse, opEnd, opBr, opBrIf, opBrTable, opReturn, opUnreachable:
		b.marks = append(b.marks, mark{at: len(b.code), op: i.op, takes: i.takes})
	}
}

// wrap marks an error of reading as [ErrMalformed], unless it is an error with another meaning.
func wrap(err error) error {
	if errors.Is(err, ErrNotOffered) || errors.Is(err, ErrTooMuch) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrMalformed, err)
}

// placePoints decides where costs are charged. The cost between two marks is charged where the code begins, or at an
// earlier point that every execution of the code passes exactly once for each time: a point before the branch, or
// before the block that ends. A loop has a point of its own, which checks the fuel. So does the entry of a function,
// unless the function goes straight into a loop.
func (b *bodyWriter) placePoints(call, grain int64) {
	b.points, b.frames = append(b.points[:0], point{mark: mark{op: entry, cost: call}, looks: true}), b.frames[:0]
	now, loops, straight := 0, 0, true
	for _, m := range b.marks {
		own := m.cost >= grain
		switch m.op {
		case opBlock:
			b.frames = append(b.frames, now)
			own = false
		case opLoop:
			b.frames = append(b.frames, now)
			now, own = len(b.points), false
			b.points = append(b.points, point{mark: mark{at: m.at, op: opLoop, takes: m.takes, cost: 1}, looks: true, aside: b.uses.sets[loops] & b.uses.reads})
			b.points[0].looks = b.points[0].looks && !straight
			loops++
		case opIf:
			b.frames = append(b.frames, now)
		case opElse:
			now = b.frames[len(b.frames)-1]
		case opEnd:
			now = b.frames[len(b.frames)-1]
			b.frames = b.frames[:len(b.frames)-1]
		case opReturn:
			b.points = append(b.points, point{mark: mark{at: m.at - 1, op: opReturn}})
			now, own = nowhere, false
		case opBr, opBrTable, opUnreachable:
			now, own = nowhere, false
		case entry:
			own = false
		}
		straight = straight && (m.op == opBlock || m.op == entry)
		if own {
			now = len(b.points)
			b.points = append(b.points, point{mark: mark{at: m.at}})
		}
		if now != nowhere {
			b.points[now].cost += m.cost
		}
	}
}

// leave writes code that puts what is left after the results of a function.
func (b *bodyWriter) leave(out []byte) []byte {
	out = putU32(append(out, opLocalGet), b.left)
	if b.frame > 0 {
		out = append(putSigned(append(out, opI64Const), b.frame), opI64Add)
	}
	return out
}

// charge writes the code of a point.
func (b *bodyWriter) charge(out []byte, p point) []byte {
	if p.op == opReturn {
		return b.leave(out)
	}
	cost, spent := p.cost<<stackBits, int64(0)
	if p.looks {
		spent = fuelSpent
	}
	if p.op == entry && b.frame > 0 {
		cost += b.frame
		spent |= stackSpent
	}
	code := putSigned([]byte{opI64Const}, cost)
	switch {
	case spent == 0:
		return putU32(append(b.less(out, code), opLocalSet), b.left)
	case p.op == opLoop && !p.takes: // a loop of the guest, whose start can be repeated
		return b.look(out, code, spent, p.aside)
	}
	return append(b.look(append(out, opLoop, 0x40), code, spent, p.aside), opEnd)
}

// less writes code that computes what is left after a cost, whose code is given.
func (b *bodyWriter) less(out, cost []byte) []byte {
	return append(append(putU32(append(out, opLocalGet), b.left), cost...), opI64Sub)
}

// look writes code that charges a cost at the start of a loop. If that uses up fuel or stack, the code returns the
// cost, asks the host for more, and branches to the start of the loop.
//
// The engine places code that leaves the straight path last, and gives registers to the code before it. A value that
// lives across a call is kept in memory in the whole function, so a loop would pay for that in each iteration.
// Therefore the code saves the locals that the loop changes in globals before the call and restores them after it, so
// that no value lives across the call.
func (b *bodyWriter) look(out, cost []byte, spent int64, aside uint64) []byte {
	out = putU32(append(b.less(out, cost), opLocalTee), b.left)
	if spent == fuelSpent { // fuelSpent is the sign bit
		out = append(out, opI64Const, 0, opI64GeS)
	} else {
		out = append(putSigned(append(out, opI64Const), spent), opI64And, opI64Eqz)
	}
	out = append(out, opIf, 0x40, opElse)
	out = b.move(out, aside, opLocalGet, opGlobalSet)
	out = putU32(append(out, opLocalGet), b.left)
	out = append(putU32(append(out, opCall), b.refiller()), cost...)
	out = putU32(append(out, opI64Add, opLocalSet), b.left)
	out = b.move(out, aside, opGlobalGet, opLocalSet)
	return append(out, opBr, 1, opEnd)
}

// chargeBytes writes code that charges for the number of bytes that is on the stack, and leaves the number there.
func (b *bodyWriter) chargeBytes(out []byte) []byte {
	cost := append(putU32([]byte{opLocalGet}, b.temp), opI64ExtendU, opI64Const, bytesPerFuel, opI64ShrU, opI64Const, stackBits, opI64Shl)
	out = append(putU32(append(out, opLocalTee), b.temp), opLoop, 0x40)
	return append(b.look(out, cost, fuelSpent, 0), opEnd)
}

// grow writes code that grows the memory by the number of pages on the stack, and charges the pages that were added.
func (b *bodyWriter) grow(out []byte) []byte {
	wanted, was := b.temp, b.temp+1
	out = putU32(append(out, opLocalTee), wanted)
	out = append(out, opMemoryGrow, 0)
	out = putU32(append(out, opLocalTee), was)
	out = append(out, opI32Const, 0x7f, opI32Ne, opIf, 0x40)
	out = putU32(append(out, opLocalGet), b.left)
	out = putU32(append(out, opLocalGet), wanted)
	out = append(out, opI64ExtendU, opI64Const, fuelPerPage+stackBits, opI64Shl, opI64Sub)
	out = putU32(append(out, opLocalSet), b.left)
	out = append(out, opEnd)
	return putU32(append(out, opLocalGet), was)
}
