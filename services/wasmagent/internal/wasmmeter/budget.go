package wasmmeter

import (
	"math"
	"slices"
)

// The budget is a single number that contains the remaining fuel and the remaining stack. Each function of the guest
// takes the budget as an additional last parameter, and returns it as an additional last result. The engine can
// therefore keep the budget in a register and need not load it from memory after each call. Functions that the guest
// imports or exports do not have this parameter. Each of them has a wrapper, which moves the fuel between the budget
// and a global.
const (
	// stackBits is how many low bits of the budget contain the remaining stack, in units of stackUnit bytes. The
	// highest of these bits is set if the stack is used up. The bits above them contain the remaining fuel as a signed
	// number.
	stackBits  = 16
	stackSpent = 1 << (stackBits - 1)
	stackWhole = stackSpent - 1
	stackUnit  = MaxStack / stackSpent
	// fuelSpent is the sign bit, which is set if the fuel is used up.
	fuelSpent   = math.MinInt64
	addedParams = 1
)

// frameOf returns the size of a function's stack frame, in units of stackUnit bytes. values is the number of values in
// the frame, and code is the size of the function's code, in bytes. The result is at most stackSpent.
func frameOf(values int64, code int) int64 {
	bytes := frameBytes + valueBytes*values + codeBytes*int64(code)
	return min((bytes+stackUnit-1)/stackUnit, stackSpent)
}

// A layout computes the indexes of types, functions and globals in a metered module.
type layout struct {
	m    *Module
	fuel uint32
	// hostCallable lists the functions of the guest that the host can call, without duplicates.
	hostCallable []uint32
}

func layoutOf(m *Module) layout {
	l := layout{m: m, fuel: uint32(len(m.globals))}
	seen := func(f uint32) {
		if f >= l.imports() && !slices.Contains(l.hostCallable, f) {
			l.hostCallable = append(l.hostCallable, f)
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

// A metered module has these types, in this order:
//   - the guest's types;
//   - the type of the refill function;
//   - for each of the guest's types, the type with the budget as an additional parameter and result;
//   - for each of the guest's types, the type of a block that returns the results of the guest's type.

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

// A metered module has these functions, in this order: the guest's imports, the refill function, the guest's own
// functions, the wrappers of the imports, the wrapper of the refill function, and the wrappers of the functions that
// the host can call.

func (l layout) refill() uint32 { return l.imports() }

// guestIndex returns the index with which the guest's code calls a function. For an import, this is the index of the
// wrapper. For a function of the guest, it is the index of the function itself.
func (l layout) guestIndex(f uint32) uint32 {
	if f < l.imports() {
		return 1 + uint32(len(l.m.typeOf)) + f
	}
	return f + 1
}

func (l layout) refillWrapper() uint32 { return 1 + uint32(len(l.m.typeOf)) + l.imports() }

// hostIndex returns the index with which a function is called without the budget. For an import, this is the index of
// the import itself. For a function of the guest, it is the index of the wrapper for calls by the host.
func (l layout) hostIndex(f uint32) uint32 {
	if f < l.imports() {
		return f
	}
	return l.refillWrapper() + 1 + uint32(slices.Index(l.hostCallable, f))
}

func (l layout) functions() int { return len(l.m.typeOf) + 1 + len(l.hostCallable) }

func (l layout) putFunctions(out []byte) []byte {
	for _, t := range l.m.typeOf[l.imports():] {
		out = putU32(out, l.passing(t))
	}
	for _, t := range l.m.typeOf[:l.imports()] {
		out = putU32(out, l.passing(t))
	}
	out = putU32(out, l.refillType())
	for _, f := range l.hostCallable {
		out = putU32(out, l.m.typeOf[f])
	}
	return out
}

// putWrappers encodes the bodies of the wrappers. The fuel global is 0 while the guest runs, so a guest that traps is
// charged for all the fuel that it has received.
func (l layout) putWrappers(out []byte) []byte {
	for i, f := range l.m.Imports {
		n := len(f.Type.Params)
		body := putU32(append(l.putFuel([]byte{0}, n), opGlobalSet), l.fuel)
		body = l.putCall(body, n, uint32(i))
		body = l.putSetFuel(l.putTakeFuel(body), n)
		out = putPart(out, append(body, opEnd))
	}
	body := putSigned([]byte{0, opI64Const}, StackSpent)
	body = putSigned(append(l.putFuel(body, 0), opLocalGet, 0, opI64Const), stackSpent)
	body = append(body, opI64And, opI64Eqz, opI32Eqz, opSelect)
	body = l.putSetFuel(l.putCall(body, 0, l.refill()), 0)
	out = putPart(out, append(body, opEnd))
	for _, f := range l.hostCallable {
		body := []byte{0}
		n := len(l.m.types[l.m.typeOf[f]].Params)
		for i := range n {
			body = putU32(append(body, opLocalGet), uint32(i))
		}
		body = append(l.putTakeFuel(body), opI64Const, stackBits, opI64Shl)
		body = append(putSigned(append(body, opI64Const), stackWhole), opI64Add)
		body = append(l.putCall(body, 0, l.guestIndex(f)), opI64Const, stackBits, opI64ShrS)
		out = putPart(out, append(putU32(append(body, opGlobalSet), l.fuel), opEnd))
	}
	return out
}

// putTakeFuel writes code that reads the fuel global and then sets it to 0.
func (l layout) putTakeFuel(out []byte) []byte {
	out = putU32(append(out, opGlobalGet), l.fuel)
	return putU32(append(out, opI64Const, 0, opGlobalSet), l.fuel)
}

// putFuel writes code that pushes the fuel from the budget, which is in the given local variable.
func (l layout) putFuel(out []byte, local int) []byte {
	return append(putU32(append(out, opLocalGet), uint32(local)), opI64Const, stackBits, opI64ShrS)
}

// putSetFuel writes code that pops fuel from the operand stack and stores it in the budget, which is in the given local
// variable.
func (l layout) putSetFuel(out []byte, local int) []byte {
	out = append(out, opI64Const, stackBits, opI64Shl)
	out = putU32(append(out, opLocalGet), uint32(local))
	out = putSigned(append(out, opI64Const), 1<<stackBits-1)
	return append(out, opI64And, opI64Or)
}

// putCall writes a call to a function. The arguments are the first parameters of the calling function.
func (l layout) putCall(out []byte, params int, f uint32) []byte {
	for i := range params {
		out = putU32(append(out, opLocalGet), uint32(i))
	}
	return putU32(append(out, opCall), f)
}

// putBlock writes the beginning of a block that returns the results of a function of type t.
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
