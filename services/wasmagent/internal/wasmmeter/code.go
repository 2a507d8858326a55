package wasmmeter

import (
	"errors"
	"fmt"
)

// The meter needs these opcodes (WebAssembly 2.0, section 5.4).
const (
	opUnreachable  = 0x00
	opBlock        = 0x02
	opLoop         = 0x03
	opIf           = 0x04
	opElse         = 0x05
	opEnd          = 0x0b
	opBr           = 0x0c
	opBrIf         = 0x0d
	opBrTable      = 0x0e
	opReturn       = 0x0f
	opCall         = 0x10
	opCallIndirect = 0x11
	opSelect       = 0x1b
	opLocalGet     = 0x20
	opLocalSet     = 0x21
	opLocalTee     = 0x22
	opGlobalGet    = 0x23
	opGlobalSet    = 0x24
	opMemoryGrow   = 0x40
	opI32Const     = 0x41
	opI64Const     = 0x42
	opF32Const     = 0x43
	opF64Const     = 0x44
	opI32Eqz       = 0x45
	opI32Ne        = 0x47
	opI32GeS       = 0x4e
	opI64Eqz       = 0x50
	opI64LtS       = 0x53
	opI64GeS       = 0x59
	opI32Sub       = 0x6b
	opI64Add       = 0x7c
	opI64Sub       = 0x7d
	opI64And       = 0x83
	opI64Or        = 0x84
	opI64Shl       = 0x86
	opI64ShrS      = 0x87
	opI64ShrU      = 0x88
	opI64ExtendU   = 0xad
	opBulk         = 0xfc
	opVector       = 0xfd

	// These are second opcodes of opBulk.
	opMemoryInit = 8
	opMemoryCopy = 10
	opMemoryFill = 11
)

type scope struct {
	layout
	// locals is the number of the function's locals, including its parameters. params is the number of its parameters.
	locals, params uint32
}

type instruction struct {
	op byte
	// sub is the second opcode of opBulk and opVector.
	sub uint32
	// values is how many parameters and results a call or a block has together. For a block, it is at least 1.
	values int
	local  uint32
	number uint32
	// takesValues is true if a block has parameters. hasNoValues is true if a block has neither parameters nor results.
	takesValues, hasNoValues bool
	// labels contains the targets of a branch. A target is the number of blocks between the branch and the target
	// block, counted from 0.
	labels []uint32
	// text is the instruction as it is encoded for the metered module. It is valid until the next instruction is read.
	text []byte
}

// readInstruction reads the next instruction into i.
func (s scope) readInstruction(r *reader, i *instruction) {
	op := r.byte()
	i.text = append(i.text[:0], op)
	i.op, i.sub, i.values, i.takesValues, i.hasNoValues = op, 0, 0, false, false
	switch {
	case op >= opBlock && op <= opIf, op >= opBr && op <= opBrTable, op == opCall, op == opCallIndirect:
		i.text = s.controlOperands(r, i, i.text)
	case op >= opLocalGet && op <= opGlobalSet:
		i.text = s.variableOperands(r, i, i.text)
	default:
		i.text = otherOperands(r, i, i.text)
	}
}

// controlOperands reads the operands of a block, a branch or a call. It appends them to out in the form that the
// metered module needs.
func (s scope) controlOperands(r *reader, i *instruction, out []byte) []byte {
	switch i.op {
	case opBr, opBrIf:
		i.labels = append(i.labels[:0], r.u32())
		return putU32(out, i.labels[0])
	case opBrTable:
		n := r.count("targets", maxTargets)
		out = putU32(out, uint32(n))
		i.labels = i.labels[:0]
		for range n + 1 {
			label := r.u32()
			i.labels = append(i.labels, label)
			out = putU32(out, label)
		}
		return out
	case opCall:
		f := s.m.funcIndex(r)
		if r.err == nil {
			i.values = s.m.types[s.m.typeOf[f]].values()
		}
		return putU32(out, s.guestIndex(f))
	case opCallIndirect:
		t := s.m.typeIndex(r)
		if r.err == nil {
			i.values = s.m.types[t].values()
		}
		return putU32(putU32(out, s.passing(t)), r.u32())
	}
	return s.blockType(r, i, out)
}

// variableOperands reads the index of a local or a global. It appends the index to out in the form that the metered
// module needs.
func (s scope) variableOperands(r *reader, i *instruction, out []byte) []byte {
	if i.op == opGlobalGet || i.op == opGlobalSet {
		global := r.u32()
		if uint64(global) >= uint64(len(s.m.globals)) {
			r.fail(fmt.Errorf("there is no global %d", global))
		}
		return putU32(out, global)
	}
	if i.local = r.u32(); i.local >= s.locals {
		r.fail(fmt.Errorf("there is no local %d", i.local))
	}
	return putU32(out, s.shiftedLocal(i.local))
}

// otherOperands reads the operands of an instruction that does not refer to blocks, functions or variables. It appends
// them to out unchanged.
func otherOperands(r *reader, i *instruction, out []byte) []byte {
	switch op := i.op; {
	case op <= 0x01, op == opElse, op == opEnd, op == opReturn, op == 0x1a, op == 0x1b, op >= 0x45 && op <= 0xc4:
		return out
	case op >= 0x28 && op <= 0x3e: // loads and stores
		return putU32(putU32(out, r.u32()), r.u32())
	case op == 0x3f, op == opMemoryGrow:
		return r.memoryIndex(out)
	case op == opI32Const:
		v := r.signed(32)
		i.number = uint32(v)
		return putSigned(out, v)
	case op == opI64Const:
		return putSigned(out, r.signed(64))
	case op == opF32Const:
		return append(out, r.bytes(4)...)
	case op == opF64Const:
		return append(out, r.bytes(8)...)
	case op == opBulk:
		i.sub = r.u32()
		return bulk(r, i.sub, putU32(out, i.sub))
	case op == opVector:
		i.sub = r.u32()
		return vector(r, i.sub, putU32(out, i.sub))
	default:
		r.fail(fmt.Errorf("%w: the instruction %#x", ErrUnsupported, op))
		return out
	}
}

// shiftedLocal returns the index that a local of the guest has in the metered function, where the budget is an
// additional parameter.
func (s scope) shiftedLocal(local uint32) uint32 {
	if local >= s.params {
		return local + addedParams
	}
	return local
}

// blockType reads the type of a block, which is empty, a single value type, or the index of a function type.
func (s scope) blockType(r *reader, i *instruction, out []byte) []byte {
	v := r.signed(33)
	switch {
	case v >= 0:
		if v >= int64(len(s.m.types)) {
			r.fail(fmt.Errorf("there is no type %d", v))
		} else {
			i.values, i.takesValues = s.m.types[v].values(), len(s.m.types[v].Params) > 0
		}
	case v == -64:
		i.hasNoValues = true
	case v >= -5: // one value
	case v == -16, v == -17:
		r.fail(fmt.Errorf("%w: a reference", ErrUnsupported))
	default:
		r.fail(errors.New("is not a block type"))
	}
	i.values = max(i.values, 1)
	return putSigned(out, v)
}

// memoryIndex reads the index of a memory, which must be 0.
func (r *reader) memoryIndex(out []byte) []byte {
	if r.byte() != 0 {
		r.fail(errors.New("a memory other than the first"))
	}
	return append(out, 0)
}

func bulk(r *reader, sub uint32, out []byte) []byte {
	switch {
	case sub <= 7: // conversions
		return out
	case sub == opMemoryInit:
		return r.memoryIndex(putU32(out, r.u32()))
	case sub == opMemoryCopy:
		return r.memoryIndex(r.memoryIndex(out))
	case sub == opMemoryFill:
		return r.memoryIndex(out)
	}
	// These instructions drop segments or change tables, which snapshots do not contain.
	r.fail(fmt.Errorf("%w: the instruction 0xfc %d, which changes tables or segments", ErrUnsupported, sub))
	return out
}

func vector(r *reader, sub uint32, out []byte) []byte {
	switch {
	case sub <= 11, sub == 92, sub == 93: // loads and stores
		return putU32(putU32(out, r.u32()), r.u32())
	case sub == 12, sub == 13: // a constant, a shuffle
		return append(out, r.bytes(16)...)
	case sub >= 21 && sub <= 34: // lanes
		return append(out, r.byte())
	case sub >= 84 && sub <= 91: // lanes in memory
		return append(putU32(putU32(out, r.u32()), r.u32()), r.byte())
	case sub <= 255:
		return out
	}
	r.fail(fmt.Errorf("%w: the instruction 0xfd %d", ErrUnsupported, sub))
	return out
}
