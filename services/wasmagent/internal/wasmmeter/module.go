// Package wasmmeter parses the WebAssembly module of a guest, and refuses features that guests may not use. It then
// encodes the module again, with additional code that counts executed instructions. Package engine uses the package.
//
// Instructions are encoded from their parsed form and not copied, so that the engine can't interpret an instruction
// differently from this package.
package wasmmeter

import (
	"errors"
	"slices"
)

// [Parse] returns these errors. Compare them with [errors.Is].
var (
	// ErrMalformed means that the bytes are not a core WebAssembly module.
	ErrMalformed = errors.New("is not a WebAssembly module")
	// ErrUnsupported means that the module uses a feature that guests may not use.
	ErrUnsupported = errors.New("is not offered to guests")
	// ErrLimitExceeded means that the module exceeds a limit.
	ErrLimitExceeded = errors.New("is more than a guest may have")
)

// A ValueType is a value type of the binary format (WebAssembly 2.0, section 5.3.1).
type ValueType byte

// These are the value types that guests may use. Reference types are not supported.
const (
	I32  ValueType = 0x7f
	I64  ValueType = 0x7e
	F32  ValueType = 0x7d
	F64  ValueType = 0x7c
	V128 ValueType = 0x7b
)

// A FuncType contains the parameter types and result types of a function.
type FuncType struct{ Params, Results []ValueType }

func (t FuncType) values() int { return len(t.Params) + len(t.Results) }

// An Import is a function that the host must supply.
type Import struct {
	Module, Name string
	Type         FuncType
}

// A Kind is the kind of an export (WebAssembly 2.0, section 5.5.10).
type Kind byte

// These are the kinds of exports.
const (
	Func Kind = iota
	Table
	Memory
	Global
)

// An Export is an export of the module.
type Export struct {
	Name  string
	Kind  Kind
	Index uint32
}

// Size contains the limits of a memory or a table.
type Size struct {
	Min uint32
	// Max is the maximum size. It is valid only if HasMax is true.
	Max    uint32
	HasMax bool
}

// A Module is a parsed module. It is immutable.
type Module struct {
	// Digest is the SHA-256 of the module, as 64 hexadecimal digits.
	Digest  string
	Imports []Import
	Exports []Export
	// Memory contains the limits of the memory, in pages of 64 KiB, or nil if the module has no memory.
	Memory *Size

	types    []FuncType
	typeOf   []uint32 // the index of the type of each function, imported functions first
	tables   []Size
	globals  []global
	start    *uint32
	elements []element
	bodies   []body
	data     []data
	names    []functionName
	// dataCount is the number of data segments that the data count section states. The instruction memory.init requires
	// this section. dataCount is nil if the module has no data count section.
	dataCount *uint32
}

type global struct {
	kind    ValueType
	mutable bool
	init    constant
}

// A constant is a constant expression that consists of one number.
type constant struct {
	op   byte
	bits []byte // the number in its canonical encoding
}

type element struct {
	offset    constant
	functions []uint32
}

type data struct {
	// active is true if the segment is copied to the memory at offset when the module starts.
	active bool
	offset constant
	bytes  []byte
}

type body struct {
	locals []localRun
	code   *reader
}

type localRun struct {
	n    uint32
	kind ValueType
}

type functionName struct {
	index uint32
	name  string
}

const maxFormatPages = 1 << 16 // in pages; the memory of a WebAssembly module has at most 4 GiB

var header = []byte{0, 'a', 's', 'm', 1, 0, 0, 0}

// HasStart reports whether the module has a start function.
func (m *Module) HasStart() bool { return m.start != nil }

// Exported reports whether the module has an export with the given name and kind.
func (m *Module) Exported(name string, kind Kind) bool {
	return slices.ContainsFunc(m.Exports, func(e Export) bool { return e.Name == name && e.Kind == kind })
}

// FuncExported returns the type of an exported function. ok is false if the module exports no function with the given
// name.
func (m *Module) FuncExported(name string) (_ FuncType, ok bool) {
	for _, e := range m.Exports {
		if e.Name == name && e.Kind == Func {
			return m.types[m.typeOf[e.Index]], true
		}
	}
	return FuncType{}, false
}

// Equal reports whether two types are the same.
func (t FuncType) Equal(other FuncType) bool {
	return slices.Equal(t.Params, other.Params) && slices.Equal(t.Results, other.Results)
}
