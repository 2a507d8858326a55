package module

import (
	"math"
	"slices"
)

// What is left of fuel and stack is one number, which functions pass on: each function of the guest takes it as an
// additional last parameter and returns it as an additional last result. So the engine can keep it in a register, and
// need not read it again after a call. Functions that the guest imports or exports do not have this number: a function
// around each of them moves the fuel between the number and the global.
const (
	// stackBits is the number of low bits, which are what is left of the stack, in units. The fuel is above them,
	// signed. The highest of these bits means that the stack is used up.
	stackBits  = 16
	stackSpent = 1 << (stackBits - 1)
	stackWhole = stackSpent - 1
	stackUnit  = MaxStack / stackSpent
	// fuelSpent is the sign bit.
	fuelSpent = math.MinInt64
	// ownParams is the number of additional parameters of a function.
	ownParams = 1
)

// frameOf returns the size of the frame of a function with this number of values and bytes of code, in units: at most
// the value that sets the highest stack bit.
func frameOf(values int64, code int) int64 {
	bytes := frameBytes + valueBytes*values + codeBytes*int64(code)
	return min((bytes+stackUnit-1)/stackUnit, stackSpent)
}

// A layout has the indexes of types, functions and globals in a metered module.
type layout struct {
	m *Module
	// fuel is the index of the global with the fuel.
	fuel uint32
	// outer are the guest's functions that the host can call, each once.
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

// Types: the guest's, that of the refill, for each of the guest's one with the number that is passed on, and for each
// one of a block with the results of a function.

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

// Functions: the guest's imports, the refill, the guest's own, and then the added ones: one around each import, one
// around the refill, and one around each function that the host can call.

func (l layout) refill() uint32 { return l.imports() }

// inside returns the index of a function for calls of the guest.
func (l layout) inside(f uint32) uint32 {
	if f < l.imports() {
		return 1 + uint32(len(l.m.typeOf)) + f
	}
	return f + 1
}

// refiller returns the index of the function around the refill.
func (l layout) refiller() uint32 { return 1 + uint32(len(l.m.typeOf)) + l.imports() }

// outside returns the index of a function for calls of the host.
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

// putOwn encodes the bodies of the added functions. While the guest runs, the global is 0, so a guest that traps has
// used everything that it got.
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

// taken writes code that takes the fuel out of the global.
func (l layout) taken(out []byte) []byte {
	out = putU32(append(out, opGlobalGet), l.fuel)
	return putU32(append(out, opI64Const, 0, opGlobalSet), l.fuel)
}

// fuelOf writes code that extracts the fuel from the number in a local.
func (l layout) fuelOf(out []byte, local int) []byte {
	return append(putU32(append(out, opLocalGet), uint32(local)), opI64Const, stackBits, opI64ShrS)
}

// withFuel writes code that puts the fuel on the stack into the number in a local.
func (l layout) withFuel(out []byte, local int) []byte {
	out = append(out, opI64Const, stackBits, opI64Shl)
	out = putU32(append(out, opLocalGet), uint32(local))
	out = putSigned(append(out, opI64Const), 1<<stackBits-1)
	return append(out, opI64And, opI64Or)
}

// call writes a call with the first parameters of the calling function.
func (l layout) call(out []byte, params int, f uint32) []byte {
	for i := range params {
		out = putU32(append(out, opLocalGet), uint32(i))
	}
	return putU32(append(out, opCall), f)
}

// putBlock begins a block that has the results of a function of a type.
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
