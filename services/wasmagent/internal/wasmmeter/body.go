package wasmmeter

import (
	"errors"
	"fmt"
	"slices"
)

// A bodyWriter encodes the metered function bodies, one at a time.
type bodyWriter struct {
	scope
	// budget is the index of the local variable that contains the remaining fuel and stack. temp is the index of the
	// first of two temporary local variables.
	budget, temp uint32
	// frame is the size of the function's stack frame, in units of stackUnit bytes.
	frame int64
	// savedGlobals describes the globals in which locals are saved. They follow the fuel global. Each element is the
	// index of the global's kind in savedKinds. numbers contains the indexes of the globals, by kind. Globals are added
	// only when a function needs them, because the engine reloads all globals after each call.
	savedGlobals []int
	numbers      [len(savedKinds)][]uint32
	// code is the code of the body before charges are added. marks contains the positions in code at which control flow
	// joins or branches.
	code  []byte
	marks []flowMark
	// needsTemps is true if the function needs the temporary locals. usesStack is true if the function calls other
	// functions or has loops, because loops call the refill function. values is the highest number of values in the
	// function's frame in addition to the locals. These values are the parameters and results of calls and blocks, and
	// a copy of the locals for each loop.
	needsTemps, usesStack bool
	values                int64
	kinds                 []ValueType

	points  []chargePoint
	frames  []int
	uses    localUses
	jumps   jumps
	current instruction
}

// A flowMark is a position in the code at which control flow joins or branches. The position is directly after the
// instruction op.
type flowMark struct {
	at int
	op byte
	// takesValues is true if op begins a loop with parameters.
	takesValues bool
	cost        int64
}

// A chargePoint is a position in the code at which fuel is charged. A point with the op opReturn charges nothing. It is
// directly before a return, and pushes the budget as the last result.
type chargePoint struct {
	flowMark
	// checksFuel is true if the point checks whether there is enough fuel. savedLocals is the set of locals that are
	// saved if there is not enough fuel.
	checksFuel  bool
	savedLocals uint64
}

const (
	// entry is the op of the mark at the beginning of a function, where there is no instruction.
	entry = 0xff
	// unreachable takes the place of the index of a charge point in code that can't be reached.
	unreachable = -1
)

func (b *bodyWriter) putBodies(minSeparate int64) ([]byte, error) {
	var out []byte
	for i := range b.m.bodies {
		text, err := b.putBody(i, minSeparate)
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

// checkLength returns [ErrLimitExceeded] if the metered code is too long.
func checkLength(code []byte) error {
	if len(code) > maxMetered {
		return fmt.Errorf("%w: more than %d bytes of metered code", ErrLimitExceeded, maxMetered)
	}
	return nil
}

func (b *bodyWriter) putBody(i int, minSeparate int64) ([]byte, error) {
	f, typeIndex := b.m.bodies[i], b.m.typeOf[len(b.m.Imports)+i]
	params := b.m.types[typeIndex].Params
	b.kinds = append(b.kinds[:0], params[:min(len(params), maxSavedLocals)]...)
	declared := 0
	for _, run := range f.locals {
		declared += int(run.n)
		for range min(int(run.n), maxSavedLocals-len(b.kinds)) {
			b.kinds = append(b.kinds, run.kind)
		}
	}
	b.params, b.locals = uint32(len(params)), uint32(len(params)+declared)
	b.budget, b.temp = b.params, b.shiftedLocal(b.locals)
	if err := b.readCode(*f.code, nil); err != nil {
		return nil, err
	}
	if loops := b.jumps.partLoops(); loops != nil {
		if err := b.readCode(*f.code, loops); err != nil {
			return nil, err
		}
	}
	b.frame = 0
	if b.usesStack {
		b.frame = frameOf(b.values+int64(b.locals), len(b.code))
	}
	b.placePoints(int64(1+declared), minSeparate)
	b.points[0].savedLocals = 1<<min(len(params), maxSavedLocals) - 1

	runs := len(f.locals)
	if b.needsTemps {
		runs++
	}
	out := putU32(nil, uint32(runs))
	for _, run := range f.locals {
		out = append(putU32(out, run.n), byte(run.kind))
	}
	if b.needsTemps {
		out = append(putU32(out, 2), byte(I32))
	}
	out = b.putBlock(out, typeIndex)
	at := 0
	for _, p := range b.points {
		out = append(out, b.code[at:p.at]...)
		out = b.putCharge(out, p)
		at = p.at
		if err := checkLength(out); err != nil { // checked early, because a few bytes of a loop may become hundreds of bytes
			return nil, err
		}
	}
	out = append(out, b.code[at:]...)
	return append(b.putBudget(out), opEnd), nil
}

// readCode reads the whole code of a function. In the first pass, loops is nil. In the second pass, loops is the result
// of jumps.partLoops.
func (b *bodyWriter) readCode(code reader, loops [][]int) error {
	r := &code
	b.code, b.marks, b.needsTemps, b.usesStack = b.code[:0], append(b.marks[:0], flowMark{op: entry}), false, false
	b.values, b.uses = 0, localUses{open: b.uses.open[:0], sets: b.uses.sets[:0]}
	b.jumps.begin(loops)
	for depth := 0; ; {
		i := &b.current
		b.readInstruction(r, i)
		if r.err != nil {
			return asMalformed(r.err)
		}
		switch i.op {
		case opBlock, opLoop, opIf:
			if depth++; depth > maxNesting {
				return fmt.Errorf("%w: %d nested blocks; there may be %d", ErrLimitExceeded, depth, maxNesting)
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
		case opBr, opBrIf, opBrTable: // the engine can't check this, because the meter adds a block around the function
			if label := slices.Max(i.labels); int64(label) > int64(depth) {
				return fmt.Errorf("%w: there is no block %d", ErrMalformed, label)
			}
		}
		b.uses.follow(i)
		b.jumps.follow(i)
		b.putInstruction(i)
		b.addMark(i)
	}
}

// putInstruction encodes an instruction, and any additional code that is needed to meter the instruction.
func (b *bodyWriter) putInstruction(i *instruction) {
	switch {
	case i.op == opCall:
		b.code = putU32(append(b.code, opLocalGet), b.budget)
	case i.op == opCallIndirect: // the table index, which is on the operand stack, must follow the budget
		b.code = putU32(append(b.code, opLocalSet), b.temp)
		b.code = putU32(append(b.code, opLocalGet), b.budget)
		b.code = putU32(append(b.code, opLocalGet), b.temp)
		b.needsTemps = true
	case i.op == opBulk && i.sub >= opMemoryInit:
		b.code, b.needsTemps = b.putByteCharge(b.code), true
	case i.op == opMemoryGrow:
		b.code, b.needsTemps = b.putGrow(b.code), true
		return // putGrow has written the instruction
	}
	b.code = append(b.code, i.text...)
	if i.op == opCall || i.op == opCallIndirect {
		b.code = putU32(append(b.code, opLocalSet), b.budget)
		b.usesStack = true
	}
}

// addMark adds the cost of an instruction to the last mark. If control flow joins or branches after the instruction,
// addMark also adds a new mark.
func (b *bodyWriter) addMark(i *instruction) {
	b.values += int64(i.values)
	if i.op == opLoop {
		b.values += int64(b.locals) + 4
		b.usesStack = true
	}
	switch i.op {
	case opBlock, opLoop, opElse, opEnd:
	default:
		b.marks[len(b.marks)-1].cost++
	}
	switch i.op {
	case opBlock, opLoop, opIf, opElse, opEnd, opBr, opBrIf, opBrTable, opReturn, opUnreachable:
		b.marks = append(b.marks, flowMark{at: len(b.code), op: i.op, takesValues: i.takesValues})
	}
}

// asMalformed adds [ErrMalformed] to an error, unless the error wraps [ErrUnsupported] or [ErrLimitExceeded].
func asMalformed(err error) error {
	if errors.Is(err, ErrUnsupported) || errors.Is(err, ErrLimitExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrMalformed, err)
}

// placePoints chooses the points at which costs are charged. call is the cost of calling the function. The cost of the
// code between two marks is charged at the beginning of that code or at an earlier point. An earlier point can be used
// if every execution of the code passes that point exactly once. Examples are a point before a branch and a point
// before a block.
//
// Each loop has a charge point that checks the fuel. The beginning of a function also has a charge point, which checks
// the fuel unless the function begins with a loop.
func (b *bodyWriter) placePoints(call, minSeparate int64) {
	b.points, b.frames = append(b.points[:0], chargePoint{flowMark: flowMark{op: entry, cost: call}, checksFuel: true}), b.frames[:0]
	point, loopCount, isStraight := 0, 0, true
	for _, m := range b.marks {
		isSeparate := m.cost >= minSeparate
		switch m.op {
		case opBlock:
			b.frames = append(b.frames, point)
			isSeparate = false
		case opLoop:
			b.frames = append(b.frames, point)
			point, isSeparate = len(b.points), false
			b.points = append(b.points, chargePoint{flowMark: flowMark{at: m.at, op: opLoop, takesValues: m.takesValues, cost: 1}, checksFuel: true, savedLocals: b.uses.sets[loopCount] & b.uses.reads})
			b.points[0].checksFuel = b.points[0].checksFuel && !isStraight
			loopCount++
		case opIf:
			b.frames = append(b.frames, point)
		case opElse:
			point = b.frames[len(b.frames)-1]
		case opEnd:
			point = b.frames[len(b.frames)-1]
			b.frames = b.frames[:len(b.frames)-1]
		case opReturn:
			b.points = append(b.points, chargePoint{flowMark: flowMark{at: m.at - 1, op: opReturn}})
			point, isSeparate = unreachable, false
		case opBr, opBrTable, opUnreachable:
			point, isSeparate = unreachable, false
		case entry:
			isSeparate = false
		}
		isStraight = isStraight && (m.op == opBlock || m.op == entry)
		if isSeparate {
			point = len(b.points)
			b.points = append(b.points, chargePoint{flowMark: flowMark{at: m.at}})
		}
		if point != unreachable {
			b.points[point].cost += m.cost
		}
	}
}

// putBudget writes code that pushes the budget as the last result of a function.
func (b *bodyWriter) putBudget(out []byte) []byte {
	out = putU32(append(out, opLocalGet), b.budget)
	if b.frame > 0 {
		out = append(putSigned(append(out, opI64Const), b.frame), opI64Add)
	}
	return out
}

func (b *bodyWriter) putCharge(out []byte, p chargePoint) []byte {
	if p.op == opReturn {
		return b.putBudget(out)
	}
	cost, spent := p.cost<<stackBits, int64(0)
	if p.checksFuel {
		spent = fuelSpent
	}
	if p.op == entry && b.frame > 0 {
		cost += b.frame
		spent |= stackSpent
	}
	code := putSigned([]byte{opI64Const}, cost)
	switch {
	case spent == 0:
		return putU32(append(b.putSubtraction(out, code), opLocalSet), b.budget)
	case p.op == opLoop && !p.takesValues: // the guest's own loop can be restarted
		return b.putCheck(out, code, spent, p.savedLocals)
	}
	return append(b.putCheck(append(out, opLoop, 0x40), code, spent, p.savedLocals), opEnd)
}

// putSubtraction writes code that subtracts a cost from the budget. The caller passes the code that pushes the cost.
func (b *bodyWriter) putSubtraction(out, cost []byte) []byte {
	return append(append(putU32(append(out, opLocalGet), b.budget), cost...), opI64Sub)
}

// putCheck writes code that charges a cost at the beginning of a loop, and checks the fuel and the stack. If the fuel
// or the stack is used up, the code calls the refill function, adds the cost to the budget again, and branches to the
// beginning of the loop.
//
// If a value is needed after a call, the engine stores that value in memory throughout the whole function, which would
// slow down every iteration of the loop. Therefore, the code copies the locals that the loop changes to globals before
// the call, and restores these locals after the call. As a result, no value must survive the call. The engine places
// this rarely executed code last, and allocates registers for the rest of the function first.
func (b *bodyWriter) putCheck(out, cost []byte, spent int64, aside uint64) []byte {
	out = putU32(append(b.putSubtraction(out, cost), opLocalTee), b.budget)
	if spent == fuelSpent { // the sign bit can be checked with a comparison
		out = append(out, opI64Const, 0, opI64GeS)
	} else {
		out = append(putSigned(append(out, opI64Const), spent), opI64And, opI64Eqz)
	}
	out = append(out, opIf, 0x40, opElse)
	out = b.putMoves(out, aside, opLocalGet, opGlobalSet)
	out = putU32(append(out, opLocalGet), b.budget)
	out = append(putU32(append(out, opCall), b.refillWrapper()), cost...)
	out = putU32(append(out, opI64Add, opLocalSet), b.budget)
	out = b.putMoves(out, aside, opGlobalGet, opLocalSet)
	return append(out, opBr, 1, opEnd)
}

// putByteCharge writes code that charges for a number of bytes. The number is on top of the operand stack, and stays
// there.
func (b *bodyWriter) putByteCharge(out []byte) []byte {
	cost := append(putU32([]byte{opLocalGet}, b.temp), opI64ExtendU, opI64Const, bytesPerFuel, opI64ShrU, opI64Const, stackBits, opI64Shl)
	out = append(putU32(append(out, opLocalTee), b.temp), opLoop, 0x40)
	return append(b.putCheck(out, cost, fuelSpent, 0), opEnd)
}

// putGrow writes code that grows the memory by the number of pages on top of the operand stack, and charges for the
// added pages.
func (b *bodyWriter) putGrow(out []byte) []byte {
	wanted, previous := b.temp, b.temp+1
	out = putU32(append(out, opLocalTee), wanted)
	out = append(out, opMemoryGrow, 0)
	out = putU32(append(out, opLocalTee), previous)
	out = append(out, opI32Const, 0x7f, opI32Ne, opIf, 0x40)
	out = putU32(append(out, opLocalGet), b.budget)
	out = putU32(append(out, opLocalGet), wanted)
	out = append(out, opI64ExtendU, opI64Const, fuelPerPage+stackBits, opI64Shl, opI64Sub)
	out = putU32(append(out, opLocalSet), b.budget)
	out = append(out, opEnd)
	return putU32(append(out, opLocalGet), previous)
}
