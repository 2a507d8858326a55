package guesttest

import "encoding/binary"

// Code is the WebAssembly code of a function without locals.
type Code []byte

// I32 returns an i32.const instruction.
func I32(n int32) Code { return append(Code{0x41}, sleb(int64(n))...) }

// I64 returns an i64.const instruction.
func I64(n int64) Code { return append(Code{0x42}, sleb(n)...) }

func sleb(v int64) (b []byte) {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

// Concat concatenates pieces of code.
func Concat(parts ...Code) (out Code) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// Answer returns the instruction that pushes the result of a step, which consists of the address and the size of an
// envelope.
func Answer(address, bytes uint32) Code { return I64(int64(address)<<32 | int64(bytes)) }

// HandMade describes a guest that is encoded by hand. It contains the code of alloc and step, sections that replace the
// default sections, and additional functions. The guest of the zero value answers each step with two zero bytes.
type HandMade struct {
	Alloc, Step Code
	Memory      []byte
	Imports     []byte
	Data        []byte
	More        []Code
	// Names contains the export names of the first functions in More.
	Names []string
}

// Module encodes the guest. Its functions are the imports, abi_version, alloc, step, and the functions in More, in this
// order. Its types are, in this order, () -> i32, (i32) -> i32, (i32, i32) -> i64, (i32, i32, i32, i32) -> i32, and
// (i32) -> ().
func (h HandMade) Module() []byte {
	if h.Alloc == nil {
		h.Alloc = I32(1024)
	}
	if h.Step == nil {
		h.Step = Answer(1024, 2)
	}
	if h.Memory == nil {
		h.Memory = []byte{1, 0, 1}
	}
	uleb := func(n int) []byte { return binary.AppendUvarint(nil, uint64(n)) }
	imported := 0
	if h.Imports != nil {
		imported = int(h.Imports[0])
	}
	out := []byte{0, 'a', 's', 'm', 1, 0, 0, 0}
	section := func(id byte, text []byte) { out = append(append(append(out, id), uleb(len(text))...), text...) }
	section(1, []byte{5, 0x60, 0, 1, 0x7f, 0x60, 1, 0x7f, 1, 0x7f, 0x60, 2, 0x7f, 0x7f, 1, 0x7e, 0x60, 4, 0x7f, 0x7f, 0x7f, 0x7f, 1, 0x7f, 0x60, 1, 0x7f, 0})
	if h.Imports != nil {
		section(2, h.Imports)
	}
	functions := append(uleb(3+len(h.More)), 0, 1, 2)
	for range h.More {
		functions = append(functions, 1)
	}
	section(3, functions)
	section(5, h.Memory)
	exports := []byte{byte(4 + len(h.Names))}
	for i, name := range append([]string{"abi_version", "alloc", "step"}, h.Names...) {
		exports = append(append(append(exports, byte(len(name))), name...), 0, byte(imported+i))
	}
	section(7, append(append(exports, 6), "memory\x02\x00"...))
	bodies := uleb(3 + len(h.More))
	for _, c := range append([]Code{I32(1), h.Alloc, h.Step}, h.More...) {
		bodies = append(append(append(bodies, uleb(len(c)+2)...), 0), append(c, 0x0b)...)
	}
	section(10, bodies)
	if h.Data != nil {
		section(11, h.Data)
	}
	return out
}

// Import returns an import section with one WASI function. kind is the index of the function's type in the list at
// [HandMade.Module].
func Import(name string, kind byte) []byte {
	out := append([]byte{1, 22}, "wasi_snapshot_preview1"...)
	return append(append(append(out, byte(len(name))), name...), 0, kind)
}

// Endless is a loop that never ends.
var Endless = Code{0x03, 0x40, 0x0c, 0, 0x0b, 0x00}
