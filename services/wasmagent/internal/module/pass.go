package module

import (
	"math"
	"slices"
)

// What is left, of the fuel and of the stack, is one number that is passed on: a function of the
// guest takes it behind its own parameters and returns it behind its own results. So the engine
// keeps it in a register, and behind a call nothing has to be read again. Outside nobody knows of
// that: what the guest imports, and what is seen of it, has a function of ours around it, and
// there and beyond the fuel is in the global.
const (
	// stackBits are the last, with what is left of the stack in units; the fuel is above them,
	// signed. The first of them says that the stack is spent.
	stackBits  = 16
	stackSpent = 1 << (stackBits - 1)
	stackWhole = stackSpent - 1
	stackUnit  = MaxStack / stackSpent
	// fuelSpent is the sign.
	fuelSpent = math.MinInt64
	// ownParams is how many parameters a function has behind its own.
	ownParams = 1
)

// frameOf is what a function takes of the stack that keeps so many values and has so much code:
// never more than makes the first bit of it 1.
func frameOf(values int64, code int) int64 {
	bytes := frameBytes + valueBytes*values + codeBytes*int64(code)
	return min((bytes+stackUnit-1)/stackUnit, stackSpent)
}

// A layout is where in a metered module things are that the guest does not have.
type layout struct {
	m *Module
	// fuel is the global.
	fuel uint32
	// outer are the guest's functions that are seen from outside, each once.
	outer []uint32
}

func layoutOf(m *Module) layout {
	l := layout{m: m, fuel: uint32(len(m.globals))}
	seen := func(f uint32) {
		if f >= l.imports() && !slices.Contains(l.outer, f) {
			l.outer = append(l.outer, f)
		}
	}
	for _, e := range m.Exports {
		if e.Kind == Func {
			seen(e.Index)
		}
	}
	if m.start != nil {
		seen(*m.start)
	}
	return l
}

func (l layout) imports() uint32 { return uint32(len(l.m.Imports)) }

// Types: the guest's, that of the refill, of each of the guest's the one with what is passed on,
// and of each the one of a block that gives what it returns.

func (l layout) refillType() uint32      { return uint32(len(l.m.types)) }
func (l layout) passing(t uint32) uint32 { return l.refillType() + 1 + t }
func (l layout) blockOf(t uint32) uint32 { return l.passing(l.refillType()) + t }

func (l layout) putTypes(out []byte) []byte {
	for _, t := range l.m.types {
		out = t.put(out)
	}
	out = FuncType{Params: []ValueType{I64}, Results: []ValueType{I64}}.put(out)
	for _, t := range l.m.types {
		out = FuncType{Params: append(slices.Clone(t.Params), I64), Results: append(slices.Clone(t.Results), I64)}.put(out)
	}
	for _, t := range l.m.types {
		out = FuncType{Results: t.Results}.put(out)
	}
	return out
}

// Functions: the guest's imports, the refill, the guest's own, and then ours: one around each
// import, one around the refill, and one around each that is seen from outside.

func (l layout) refill() uint32 { return l.imports() }

// inside is a function's index as the guest calls it.
func (l layout) inside(f uint32) uint32 {
	if f < l.imports() {
		return 1 + uint32(len(l.m.typeOf)) + f
	}
	return f + 1
}

// refiller is the function around the refill.
func (l layout) refiller() uint32 { return 1 + uint32(len(l.m.typeOf)) + l.imports() }

// outside is a function's index as the host calls it.
func (l layout) outside(f uint32) uint32 {
	if f < l.imports() {
		return f
	}
	return l.refiller() + 1 + uint32(slices.Index(l.outer, f))
}

func (l layout) functions() int { return len(l.m.typeOf) + 1 + len(l.outer) }

func (l layout) putFunctions(out []byte) []byte {
	for _, t := range l.m.typeOf[l.imports():] {
		out = putU32(out, l.passing(t))
	}
	for _, t := range l.m.typeOf[:l.imports()] {
		out = putU32(out, l.passing(t))
	}
	out = putU32(out, l.refillType())
	for _, f := range l.outer {
		out = putU32(out, l.m.typeOf[f])
	}
	return out
}

// putOwn writes the bodies of the functions that are ours. While the guest runs the global is 0:
// so one that traps has taken all that it was given.
func (l layout) putOwn(out []byte) []byte {
	for i, f := range l.m.Imports {
		n := len(f.Type.Params)
		body := putU32(append(l.fuelOf([]byte{0}, n), opGlobalSet), l.fuel)
		body = l.call(body, n, uint32(i))
		body = l.withFuel(l.taken(body), n)
		out = putPart(out, append(body, opEnd))
	}
	body := putSigned([]byte{0, opI64Const}, StackSpent)
	body = putSigned(append(l.fuelOf(body, 0), opLocalGet, 0, opI64Const), stackSpent)
	body = append(body, opI64And, opI64Eqz, opI32Eqz, opSelect)
	body = l.withFuel(l.call(body, 0, l.refill()), 0)
	out = putPart(out, append(body, opEnd))
	for _, f := range l.outer {
		body := []byte{0}
		n := len(l.m.types[l.m.typeOf[f]].Params)
		for i := range n {
			body = putU32(append(body, opLocalGet), uint32(i))
		}
		body = append(l.taken(body), opI64Const, stackBits, opI64Shl)
		body = append(putSigned(append(body, opI64Const), stackWhole), opI64Add)
		body = append(l.call(body, 0, l.inside(f)), opI64Const, stackBits, opI64ShrS)
		out = putPart(out, append(putU32(append(body, opGlobalSet), l.fuel), opEnd))
	}
	return out
}

// taken writes how the fuel is taken out of the global.
func (l layout) taken(out []byte) []byte {
	out = putU32(append(out, opGlobalGet), l.fuel)
	return putU32(append(out, opI64Const, 0, opGlobalSet), l.fuel)
}

// fuelOf writes how the fuel is taken of what is left, which is in a local.
func (l layout) fuelOf(out []byte, local int) []byte {
	return append(putU32(append(out, opLocalGet), uint32(local)), opI64Const, stackBits, opI64ShrS)
}

// withFuel writes how what is left, which is in a local, has the fuel that is on the stack.
func (l layout) withFuel(out []byte, local int) []byte {
	out = append(out, opI64Const, stackBits, opI64Shl)
	out = putU32(append(out, opLocalGet), uint32(local))
	out = putSigned(append(out, opI64Const), 1<<stackBits-1)
	return append(out, opI64And, opI64Or)
}

// call writes a call with the first parameters of the function that calls.
func (l layout) call(out []byte, params int, f uint32) []byte {
	for i := range params {
		out = putU32(append(out, opLocalGet), uint32(i))
	}
	return putU32(append(out, opCall), f)
}

// putBlock begins a block that gives what a function of a type returns.
func (l layout) putBlock(out []byte, t uint32) []byte {
	out = append(out, opBlock)
	switch r := l.m.types[t].Results; len(r) {
	case 0:
		return append(out, 0x40)
	case 1:
		return append(out, byte(r[0]))
	}
	return putSigned(out, int64(l.blockOf(t)))
}
