package wasmmeter

import "math/bits"

// maxSavedLocals limits how many locals a function saves in globals while it calls the refill function. maxSavedPerKind
// limits how many of them may have the same kind. Only the first locals of a function are saved.
const maxSavedLocals, maxSavedPerKind = 64, 16

// savedKinds contains the kinds of locals that are saved, and their zero values.
var savedKinds = [...]struct {
	kind ValueType
	zero constant
}{
	{I32, constant{op: opI32Const, bits: []byte{0}}},
	{I64, constant{op: opI64Const, bits: []byte{0}}},
	{F32, constant{op: opF32Const, bits: make([]byte, 4)}},
	{F64, constant{op: opF64Const, bits: make([]byte, 8)}},
}

// localUses describes how a function uses its first locals. A set of locals has one bit for each local.
type localUses struct {
	// set contains the locals that were set in the current stretch of code, which is code into whose middle no branch
	// goes. reads contains the locals that any stretch reads before it sets them. Only the values of these locals can
	// be needed at the beginning of a loop. Saving other locals would waste time in each iteration.
	set, reads uint64
	// open contains, for each open block, the innermost loop around the block's code, as an index in sets. sets
	// contains, for each loop, the locals that the loop sets.
	open []int
	sets []uint64
}

// noLoop means that a block is not inside a loop.
const noLoop = -1

// follow processes the next instruction.
func (u *localUses) follow(i *instruction) {
	var local uint64
	if i.local < maxSavedLocals {
		local = 1 << i.local
	}
	in := noLoop
	if len(u.open) > 0 {
		in = u.open[len(u.open)-1]
	}
	switch i.op {
	case opLocalGet:
		u.reads |= local &^ u.set
	case opLocalSet, opLocalTee:
		u.set |= local
		if in != noLoop {
			u.sets[in] |= local
		}
	case opLoop:
		u.set = 0
		u.open = append(u.open, len(u.sets))
		u.sets = append(u.sets, 0)
	case opBlock, opIf:
		u.open = append(u.open, in)
	case opElse:
		u.set = 0
	case opEnd:
		u.set = 0
		u.open = u.open[:len(u.open)-1]
		if n := len(u.open); in != noLoop && n > 0 && u.open[n-1] < in && u.open[n-1] != noLoop {
			u.sets[u.open[n-1]] |= u.sets[in]
		}
	}
}

// putMoves writes code that copies locals to the globals in which they are saved, or copies them back.
func (b *bodyWriter) putMoves(out []byte, locals uint64, from, to byte) []byte {
	var taken [len(savedKinds)]int
	for ; locals != 0; locals &= locals - 1 {
		local := bits.TrailingZeros64(locals)
		kind := 0
		for kind < len(savedKinds) && savedKinds[kind].kind != b.kinds[local] {
			kind++
		}
		if kind == len(savedKinds) || taken[kind] == maxSavedPerKind {
			continue // not saved; the value stays in the local during the call
		}
		if taken[kind] == len(b.numbers[kind]) {
			b.numbers[kind] = append(b.numbers[kind], b.fuel+1+uint32(len(b.savedGlobals)))
			b.savedGlobals = append(b.savedGlobals, kind)
		}
		global := b.numbers[kind][taken[kind]]
		taken[kind]++
		one, other := b.shiftedLocal(uint32(local)), global
		if from == opGlobalGet {
			one, other = other, one
		}
		out = putU32(append(putU32(append(out, from), one), to), other)
	}
	return out
}
