package module

import "math/bits"

// maxAside is the number of first locals of a function that may be saved in globals while the function asks for fuel,
// and asideOfKind the number of them of each kind.
const maxAside, asideOfKind = 64, 16

// asideKinds are the kinds of locals that are saved, with their zero values.
var asideKinds = [...]struct {
	kind ValueType
	zero constant
}{
	{I32, constant{op: opI32Const, bits: []byte{0}}},
	{I64, constant{op: opI64Const, bits: []byte{0}}},
	{F32, constant{op: opF32Const, bits: make([]byte, 4)}},
	{F64, constant{op: opF64Const, bits: make([]byte, 8)}},
}

// uses describes the use of the first locals, with a bit for each.
type uses struct {
	// set are the locals that were set in the present stretch of code, into which no jump leads. reads are the locals
	// that are read anywhere before they were set in their stretch: only their values can be needed at the start of a
	// loop. Saving others would cost time in each iteration for nothing.
	set, reads uint64
	// open has, for each open block, the index in sets of the innermost loop around its code. sets has the locals that
	// each loop sets.
	open []int
	sets []uint64
}

const noLoop = -1

// follow processes an instruction.
func (u *uses) follow(i *instruction) {
	var local uint64
	if i.local < maxAside {
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

// move writes code that copies locals to the globals for saved locals, or back.
func (b *bodyWriter) move(out []byte, locals uint64, from, to byte) []byte {
	var taken [len(asideKinds)]int
	for ; locals != 0; locals &= locals - 1 {
		local := bits.TrailingZeros64(locals)
		kind := 0
		for kind < len(asideKinds) && asideKinds[kind].kind != b.kinds[local] {
			kind++
		}
		if kind == len(asideKinds) || taken[kind] == asideOfKind {
			continue // its value stays in the local across the call
		}
		if taken[kind] == len(b.numbers[kind]) {
			b.numbers[kind] = append(b.numbers[kind], b.fuel+1+uint32(len(b.aside)))
			b.aside = append(b.aside, kind)
		}
		global := b.numbers[kind][taken[kind]]
		taken[kind]++
		one, other := b.moved(uint32(local)), global
		if from == opGlobalGet {
			one, other = other, one
		}
		out = putU32(append(putU32(append(out, from), one), to), other)
	}
	return out
}
