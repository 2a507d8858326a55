// Package module reads a guest's WebAssembly before anything else does, refuses what a
// guest may not have, and writes it again so that it counts its own work.
//
// What runs is what was read here: everything that has a number in it is written from
// what was understood, never copied, so no other reader can see other instructions.
package module

import (
	"errors"
	"slices"
)

// Errors of [Parse], for [errors.Is].
var (
	// ErrMalformed: it is no core WebAssembly module.
	ErrMalformed = errors.New("is no WebAssembly module")
	// ErrNotOffered: it wants what guests do not get.
	ErrNotOffered = errors.New("is not offered to guests")
	// ErrTooMuch: it has more of something than a guest may have.
	ErrTooMuch = errors.New("is more than a guest may have")
)

// A ValueType is a type of the binary format, section 5.3.1.
type ValueType byte

// The types of values. References are not offered.
const (
	I32  ValueType = 0x7f
	I64  ValueType = 0x7e
	F32  ValueType = 0x7d
	F64  ValueType = 0x7c
	V128 ValueType = 0x7b
)

// A FuncType is what a function takes and returns.
type FuncType struct{ Params, Results []ValueType }

// values is how many values it takes and returns.
func (t FuncType) values() int { return len(t.Params) + len(t.Results) }

// An Import is a function that the host is to supply.
type Import struct {
	Module, Name string
	Type         FuncType
}

// A Kind is what an export is, section 5.5.10.
type Kind byte

// The kinds of exports.
const (
	Func Kind = iota
	Table
	Memory
	Global
)

// An Export is what the guest shows the host.
type Export struct {
	Name  string
	Kind  Kind
	Index uint32
}

// Size is how large a memory or a table is at the start and may become at the most.
type Size struct {
	Min uint32
	// Max is what it may become; meaningless where Bounded is false.
	Max     uint32
	Bounded bool
}

// A Module is a guest's module that was read. It is immutable.
type Module struct {
	// Digest is the SHA-256 of its bytes: hex, 64 characters.
	Digest  string
	Imports []Import
	Exports []Export
	// Memory is its memory in pages of 64 KiB; nil where it has none.
	Memory *Size

	types    []FuncType
	typeOf   []uint32 // of each function, those that are imported first
	tables   []Size
	globals  []global
	start    *uint32
	elements []element
	bodies   []body
	data     []data
	names    []functionName
	// counted is how much data there is, as a section of its own says, which memory.init
	// needs; nil where there is none.
	counted *uint32
}

type global struct {
	kind    ValueType
	mutable bool
	init    constant
}

// A constant is a constant expression that is understood: a number, or a function.
type constant struct {
	op   byte
	bits []byte // of the number, canonical
}

type element struct {
	offset    constant
	functions []uint32
}

type data struct {
	// active says that it is written into the memory at the start, at offset.
	active bool
	offset constant
	bytes  []byte
}

type body struct {
	locals []localRun
	code   *reader
}

// A localRun are some locals of one type.
type localRun struct {
	n    uint32
	kind ValueType
}

type functionName struct {
	index uint32
	name  string
}

const pageMost = 1 << 16 // a memory has 4 GiB at the most

var header = []byte{0, 'a', 's', 'm', 1, 0, 0, 0}

// HasStart reports whether a function of it runs when it is made.
func (m *Module) HasStart() bool { return m.start != nil }

// Exported reports whether it exports something of a kind by a name.
func (m *Module) Exported(name string, kind Kind) bool {
	return slices.ContainsFunc(m.Exports, func(e Export) bool { return e.Name == name && e.Kind == kind })
}

// FuncExported is the type of a function that it exports by a name. ok is false where it
// exports none.
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
