package wasmmeter

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// These are the ids of sections (WebAssembly 2.0, section 5.5.2).
const (
	customSection = iota
	typeSection
	importSection
	functionSection
	tableSection
	memorySection
	globalSection
	exportSection
	startSection
	elementSection
	codeSection
	dataSection
	dataCountSection
)

// order maps the id of a section to the position that the section has in a module. The data count section comes before
// the code section.
var order = [...]int{
	typeSection: 1, importSection: 2, functionSection: 3, tableSection: 4, memorySection: 5, globalSection: 6,
	exportSection: 7, startSection: 8, elementSection: 9, dataCountSection: 10, codeSection: 11, dataSection: 12,
}

// Parse parses a module. It does not check the types of operands, so the engine must still validate the module. The
// caller must not modify the text afterwards. Parse returns [ErrMalformed], [ErrUnsupported] or [ErrLimitExceeded].
func Parse(text []byte) (*Module, error) {
	if len(text) > maxSize {
		return nil, fmt.Errorf("%w: %d bytes; it may have %d", ErrLimitExceeded, len(text), maxSize)
	}
	if !bytes.HasPrefix(text, header) {
		if len(text) >= 8 && bytes.HasPrefix(text, header[:4]) && text[6] == 1 {
			return nil, fmt.Errorf("%w: a component; build a core module, for example with the target wasip1", ErrUnsupported)
		}
		return nil, fmt.Errorf("%w: it does not begin with the header of version 1", ErrMalformed)
	}
	sum := sha256.Sum256(text)
	m := &Module{Digest: hex.EncodeToString(sum[:])}
	r := &reader{text: text, at: len(header)}
	for last := 0; !r.done(); {
		id := r.byte()
		part := r.part(r.u32())
		if r.err == nil && id != customSection {
			if int(id) >= len(order) || order[id] <= last {
				part.fail(fmt.Errorf("section %d is in a wrong position", id))
			} else {
				last = order[id]
			}
		}
		m.section(id, part)
		if r.err == nil {
			r.err = part.err
		}
		if r.err != nil {
			break
		}
	}
	switch functions := len(m.typeOf) - len(m.Imports); {
	case len(m.bodies) != functions:
		r.fail(fmt.Errorf("%d functions have %d bodies", functions, len(m.bodies)))
	case m.dataCount != nil && uint64(*m.dataCount) != uint64(len(m.data)):
		r.fail(fmt.Errorf("%d data segments, but the data count is %d", len(m.data), *m.dataCount))
	}
	if r.err != nil {
		if errors.Is(r.err, ErrUnsupported) || errors.Is(r.err, ErrLimitExceeded) {
			return nil, r.err
		}
		return nil, fmt.Errorf("%w: %w", ErrMalformed, r.err)
	}
	return m, nil
}

func (m *Module) section(id byte, r *reader) {
	switch id {
	case customSection:
		m.customSectionNames(r)
		return
	case typeSection:
		for range r.count("types", maxTypes) {
			m.types = append(m.types, r.funcType())
		}
	case importSection:
		for range r.count("imports", maxImports) {
			m.importFunc(r)
		}
	case functionSection:
		for range r.count("functions", maxFunctions) {
			m.typeOf = append(m.typeOf, m.typeIndex(r))
		}
	case tableSection:
		for range r.count("tables", maxTables) {
			if kind := r.byte(); kind != 0x70 {
				r.fail(fmt.Errorf("%w: a table whose type is not functions", ErrUnsupported))
			}
			m.tables = append(m.tables, r.size("entries of a table", maxTable, 1<<32-1))
		}
	case memorySection:
		for range r.count("memories", 1) {
			size := r.size("pages of memory", maxPages, maxFormatPages)
			m.Memory = &size
		}
	case globalSection:
		for range r.count("globals", maxGlobals) {
			m.globals = append(m.globals, global{kind: r.valueType(), mutable: r.flag(), init: r.constant()})
		}
	case exportSection:
		for range r.count("exports", maxExports) {
			m.export(r)
		}
	case startSection:
		at := m.funcIndex(r)
		m.start = &at
	case elementSection:
		for range r.count("element segments", maxElements) {
			m.elements = append(m.elements, m.element(r))
		}
	case dataCountSection:
		n := r.u32()
		m.dataCount = &n
	case codeSection:
		for range r.count("bodies", maxFunctions) {
			m.body(r)
		}
	case dataSection:
		for range r.count("data segments", maxData) {
			m.data = append(m.data, r.data())
		}
	}
	if r.err == nil && !r.done() {
		r.fail(fmt.Errorf("section %d has bytes after its end", id))
	}
}

func (r *reader) valueType() ValueType {
	switch t := ValueType(r.byte()); t {
	case I32, I64, F32, F64, V128:
		return t
	case 0x70, 0x6f:
		r.fail(fmt.Errorf("%w: a reference", ErrUnsupported))
	default:
		r.fail(fmt.Errorf("%#x is not a value type", byte(t)))
	}
	return 0
}

func (r *reader) flag() bool {
	b := r.byte()
	if b > 1 {
		r.fail(fmt.Errorf("%#x is neither 0 nor 1", b))
	}
	return b == 1
}

func (r *reader) funcType() (t FuncType) {
	if r.byte() != 0x60 {
		r.fail(errors.New("is not a function type"))
	}
	for range r.count("parameters", maxParams) {
		t.Params = append(t.Params, r.valueType())
	}
	for range r.count("results", maxParams) {
		t.Results = append(t.Results, r.valueType())
	}
	return t
}

// size reads the limits of a memory or a table. The initial size may be at most maxInitial, and the maximum size may be
// at most formatMax.
func (r *reader) size(what string, maxInitial, formatMax uint32) (s Size) {
	s.HasMax = r.flag()
	if s.Min = r.u32(); s.Min > maxInitial {
		r.fail(fmt.Errorf("%w: %d %s at the start; there may be %d", ErrLimitExceeded, s.Min, what, maxInitial))
	}
	if s.HasMax {
		if s.Max = r.u32(); s.Max < s.Min || s.Max > formatMax {
			r.fail(fmt.Errorf("%d to %d %s", s.Min, s.Max, what))
		}
	}
	return s
}

// constant reads a constant expression, which must be a single number. It can't be the value of a global, because
// guests can't import globals.
func (r *reader) constant() (c constant) {
	switch c.op = r.byte(); c.op {
	case 0x41:
		c.bits = putSigned(nil, r.signed(32))
	case 0x42:
		c.bits = putSigned(nil, r.signed(64))
	case 0x43:
		c.bits = r.bytes(4)
	case 0x44:
		c.bits = r.bytes(8)
	default:
		r.fail(fmt.Errorf("%w: a constant that is not a number (%#x)", ErrUnsupported, c.op))
	}
	if r.err == nil && r.byte() != opEnd {
		r.fail(fmt.Errorf("%w: a constant of more than one number", ErrUnsupported))
	}
	return c
}

func (m *Module) typeIndex(r *reader) uint32 {
	i := r.u32()
	if uint64(i) >= uint64(len(m.types)) {
		r.fail(fmt.Errorf("there is no type %d", i))
		return 0
	}
	return i
}

func (m *Module) funcIndex(r *reader) uint32 {
	i := r.u32()
	if uint64(i) >= uint64(len(m.typeOf)) {
		r.fail(fmt.Errorf("there is no function %d", i))
		return 0
	}
	return i
}

func (m *Module) importFunc(r *reader) {
	from, name := r.name(), r.name()
	if kind := Kind(r.byte()); r.err == nil && kind != Func {
		r.fail(fmt.Errorf("%w: the import %q of %q, which is not a function", ErrUnsupported, name, from))
		return
	}
	t := m.typeIndex(r)
	if r.err != nil {
		return
	}
	m.typeOf = append(m.typeOf, t)
	m.Imports = append(m.Imports, Import{Module: from, Name: name, Type: m.types[t]})
}

func (m *Module) export(r *reader) {
	e := Export{Name: r.name(), Kind: Kind(r.byte()), Index: r.u32()}
	var count int
	switch e.Kind {
	case Func:
		count = len(m.typeOf)
	case Table:
		count = len(m.tables)
	case Memory:
		if m.Memory != nil {
			count = 1
		}
	case Global:
		count = len(m.globals)
	}
	switch {
	case uint64(e.Index) >= uint64(count):
		r.fail(fmt.Errorf("the export %q refers to nothing", e.Name))
	case bytes.HasPrefix([]byte(e.Name), []byte(ownPrefix)):
		r.fail(fmt.Errorf("%w: the export %q, whose name is reserved", ErrUnsupported, e.Name))
	}
	m.Exports = append(m.Exports, e)
}

// element reads an active segment, which fills a table when the module starts. Other kinds of segments are refused,
// because they are useful only together with instructions that guests may not use.
func (m *Module) element(r *reader) (e element) {
	switch form := r.u32(); form {
	case 0:
		e.offset = r.constant()
	case 2:
		if r.u32() != 0 {
			r.fail(errors.New("an element segment of another table"))
		}
		if e.offset = r.constant(); r.byte() != 0 {
			r.fail(errors.New("an element segment without functions"))
		}
	default:
		r.fail(fmt.Errorf("%w: an element segment of the form %d", ErrUnsupported, form))
	}
	for range r.count("elements", maxTable) {
		e.functions = append(e.functions, m.funcIndex(r))
	}
	return e
}

func (r *reader) data() (d data) {
	switch form := r.u32(); form {
	case 0:
		d.active, d.offset = true, r.constant()
	case 1:
	case 2:
		if d.active = true; r.u32() != 0 {
			r.fail(errors.New("a data segment of another memory"))
		}
		d.offset = r.constant()
	default:
		r.fail(fmt.Errorf("a data segment of the form %d", form))
	}
	d.bytes = r.bytes(r.u32())
	return d
}

func (m *Module) body(r *reader) {
	part := r.part(r.u32())
	if r.err != nil {
		return
	}
	if len(part.text) > maxBody {
		r.fail(fmt.Errorf("%w: function %d has %d bytes; it may have %d", ErrLimitExceeded, len(m.Imports)+len(m.bodies), len(part.text), maxBody))
		return
	}
	var b body
	var all uint64
	for range part.count("runs of locals", maxLocals) {
		run := localRun{n: part.u32(), kind: part.valueType()}
		if all += uint64(run.n); all > maxLocals {
			part.fail(fmt.Errorf("%w: %d locals; a function may have %d", ErrLimitExceeded, all, maxLocals))
			break
		}
		b.locals = append(b.locals, run)
	}
	b.code = part
	m.bodies = append(m.bodies, b)
	if part.err != nil {
		r.err = part.err
	}
}

// customSectionNames reads the names of functions, which appear in stack traces of failed guests. It ignores names that
// can't be parsed, as the specification requires (section 7.4).
func (m *Module) customSectionNames(r *reader) {
	if r.name() != "name" || r.err != nil {
		return
	}
	for !r.done() {
		id := r.byte()
		part := r.part(r.u32())
		if id != 1 {
			continue
		}
		var names []functionName
		for range part.count("names", maxFunctions+maxImports) {
			names = append(names, functionName{index: part.u32(), name: part.name()})
		}
		if part.err == nil && part.done() {
			m.names = names
		}
	}
	r.err = nil
}
