package wasmmeter_test

import (
	"encoding/binary"

	"pgregory.net/rapid"
)

// A generated program is a tree of nodes. An interpreter in this file runs the tree and counts the exact cost of each
// instruction. The engine runs a module that is encoded from the same tree. The tests compare the two runs.

const (
	globals    = 2
	memorySize = 1 << 16
	// maxInstructions is the number of instructions after which the interpreter stops. A program that reaches the maximum
	// is skipped.
	maxInstructions = 200_000
)

type machine struct {
	functions []function
	globals   [globals]int32
	memory    []byte
	pages     int32
	// instructions is the number of executed instructions. bytes is the fuel for filling bytes, and added is the number
	// of pages by which the memory grew. points is the cost of calls and loop iterations.
	instructions, bytes, added, points int64
}

type frame struct {
	*machine
	locals []int32
}

type function struct {
	locals int
	body   []node
}

// A signal describes how a node ended: normally (0), with a branch out of n blocks (n above 0), or by leaving the
// function (leaveFunction).
type signal int

const leaveFunction signal = -1

type node interface {
	run(*frame) signal
	put([]byte) []byte
}

type expr interface {
	value(*frame) int32
	put([]byte) []byte
}

type (
	number    int32
	local     uint32
	globalOf  uint32
	operation struct {
		op   byte
		a, b expr
	}
	load struct{ at expr }

	setLocal struct {
		to uint32
		v  expr
	}
	setGlobal struct {
		to uint32
		v  expr
	}
	store  struct{ at, v expr }
	fill   struct{ at, v, n expr }
	grow   struct{ pages int32 }
	choice struct {
		cond     expr
		then, or []node
	}
	loop struct {
		count uint32
		times int32
		body  []node
	}
	block struct{ body []node }
	// branchIf branches out of the given number of blocks if cond is not 0.
	branchIf struct {
		cond expr
		out  uint32
	}
	branchAlways struct{ out uint32 }
	returnIf     struct{ cond expr }
	table        struct {
		on      expr
		a, b, c []node
	}
	call struct{ f uint32 }
)

func sleb(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

func uleb(b []byte, v uint32) []byte { return binary.AppendUvarint(b, uint64(v)) }

func (n number) value(f *frame) int32   { f.instructions++; return int32(n) }
func (n number) put(b []byte) []byte    { return sleb(append(b, 0x41), int64(n)) }
func (l local) value(f *frame) int32    { f.instructions++; return f.locals[l] }
func (l local) put(b []byte) []byte     { return uleb(append(b, 0x20), uint32(l)) }
func (g globalOf) value(f *frame) int32 { f.instructions++; return f.globals[g] }
func (g globalOf) put(b []byte) []byte  { return uleb(append(b, 0x23), uint32(g)) }

func (o operation) value(f *frame) int32 {
	a, b := o.a.value(f), o.b.value(f)
	f.instructions++
	switch o.op {
	case 0x6a:
		return a + b
	case 0x6b:
		return a - b
	case 0x6c:
		return a * b
	case 0x73:
		return a ^ b
	case 0x48:
		if a < b {
			return 1
		}
		return 0
	}
	panic("no such operation")
}
func (o operation) put(b []byte) []byte { return append(o.b.put(o.a.put(b)), o.op) }

// address converts a value to a memory address that is never beyond the end of the memory.
func address(f *frame, at expr) int32 {
	v := at.value(f)
	f.instructions += 2
	return v & 0x7ffc
}
func putPlace(b []byte, at expr) []byte { return append(sleb(append(at.put(b), 0x41), 0x7ffc), 0x71) }

func (l load) value(f *frame) int32 {
	at := address(f, l.at)
	f.instructions++
	return int32(binary.LittleEndian.Uint32(f.memory[at:]))
}
func (l load) put(b []byte) []byte { return append(putPlace(b, l.at), 0x28, 2, 0) }

func (s setLocal) run(f *frame) signal {
	v := s.v.value(f)
	f.instructions++
	f.locals[s.to] = v
	return 0
}
func (s setLocal) put(b []byte) []byte { return uleb(append(s.v.put(b), 0x21), s.to) }

func (s setGlobal) run(f *frame) signal {
	v := s.v.value(f)
	f.instructions++
	f.globals[s.to] = v
	return 0
}
func (s setGlobal) put(b []byte) []byte { return uleb(append(s.v.put(b), 0x24), s.to) }

func (s store) run(f *frame) signal {
	at, v := address(f, s.at), s.v.value(f)
	f.instructions++
	binary.LittleEndian.PutUint32(f.memory[at:], uint32(v))
	return 0
}
func (s store) put(b []byte) []byte { return append(s.v.put(putPlace(b, s.at)), 0x36, 2, 0) }

func (s fill) run(f *frame) signal {
	at, v, n := address(f, s.at), s.v.value(f), address(f, s.n)
	f.instructions++
	f.bytes += int64(n) / 8
	for i := range n {
		f.memory[at+i] = byte(v)
	}
	return 0
}
func (s fill) put(b []byte) []byte {
	return append(putPlace(s.v.put(putPlace(b, s.at)), s.n), 0xfc, 11, 0)
}

func (s grow) run(f *frame) signal {
	f.instructions += 3
	if f.pages+s.pages <= 3 {
		f.pages += s.pages
		f.added += int64(s.pages)
	}
	return 0
}
func (s grow) put(b []byte) []byte {
	return append(sleb(append(b, 0x41), int64(s.pages)), 0x40, 0, 0x1a)
}

func runAll(f *frame, body []node) signal {
	for _, n := range body {
		if s := n.run(f); s != 0 {
			return s
		}
	}
	return 0
}

func putAll(b []byte, body []node) []byte {
	for _, n := range body {
		b = n.put(b)
	}
	return b
}

// afterBlock converts a signal inside a block to the signal that applies after the block.
func afterBlock(s signal) signal {
	if s > 0 {
		return s - 1
	}
	return s
}

func (c choice) run(f *frame) signal {
	v := c.cond.value(f)
	f.instructions++
	if v != 0 {
		return afterBlock(runAll(f, c.then))
	}
	return afterBlock(runAll(f, c.or))
}
func (c choice) put(b []byte) []byte {
	b = putAll(append(c.cond.put(b), 0x04, 0x40), c.then)
	if len(c.or) > 0 {
		b = putAll(append(b, 0x05), c.or)
	}
	return append(b, 0x0b)
}

func (l loop) run(f *frame) signal {
	f.instructions += 2
	f.locals[l.count] = l.times
	for {
		f.points++
		if s := runAll(f, l.body); s != 0 {
			return afterBlock(s)
		}
		f.instructions += 5
		if f.locals[l.count]--; f.locals[l.count] == 0 {
			return 0
		}
		if f.instructions > maxInstructions {
			return leaveFunction
		}
	}
}
func (l loop) put(b []byte) []byte {
	b = uleb(append(sleb(append(b, 0x41), int64(l.times)), 0x21), l.count)
	b = putAll(append(b, 0x03, 0x40), l.body)
	b = append(uleb(append(b, 0x20), l.count), 0x41, 1, 0x6b)
	return append(uleb(append(b, 0x22), l.count), 0x0d, 0, 0x0b)
}

func (s block) run(f *frame) signal { return afterBlock(runAll(f, s.body)) }
func (s block) put(b []byte) []byte { return append(putAll(append(b, 0x02, 0x40), s.body), 0x0b) }

func (s branchIf) run(f *frame) signal {
	v := s.cond.value(f)
	f.instructions++
	if v != 0 {
		return signal(s.out + 1)
	}
	return 0
}
func (s branchIf) put(b []byte) []byte { return uleb(append(s.cond.put(b), 0x0d), s.out) }

func (s branchAlways) run(f *frame) signal { f.instructions++; return signal(s.out + 1) }
func (s branchAlways) put(b []byte) []byte { return uleb(append(b, 0x0c), s.out) }

func (s returnIf) run(f *frame) signal {
	v := s.cond.value(f)
	f.instructions++
	if v != 0 {
		f.instructions++
		return leaveFunction
	}
	return 0
}
func (s returnIf) put(b []byte) []byte { return append(s.cond.put(b), 0x04, 0x40, 0x0f, 0x0b) }

func (s table) run(f *frame) signal {
	v := s.on.value(f)
	f.instructions++
	if v == 0 {
		switch result := runAll(f, s.a); {
		case result == 0:
			f.instructions++ // the branch out of the two blocks around a
			return runAll(f, s.c)
		case result == 1: // out of the inner block: continue with b
			v = 1
		case result != 2:
			return afterBlock(afterBlock(result))
		}
	}
	if v == 1 {
		if result := afterBlock(runAll(f, s.b)); result != 0 {
			return result
		}
	}
	return runAll(f, s.c)
}
func (s table) put(b []byte) []byte {
	b = append(s.on.put(append(b, 0x02, 0x40, 0x02, 0x40, 0x02, 0x40)), 0x0e, 2, 0, 1, 2, 0x0b)
	b = append(putAll(b, s.a), 0x0c, 1, 0x0b)
	return putAll(append(putAll(b, s.b), 0x0b), s.c)
}

func (s call) run(f *frame) signal {
	f.instructions++
	return f.call(int(s.f))
}
func (s call) put(b []byte) []byte { return uleb(append(b, 0x10), s.f) }

// call runs a function. If maxInstructions is reached, call ends all functions that are running.
func (m *machine) call(i int) signal {
	fn := m.functions[i]
	m.points += int64(1 + fn.locals)
	runAll(&frame{machine: m, locals: make([]int32, fn.locals)}, fn.body)
	if m.instructions > maxInstructions {
		return leaveFunction
	}
	return 0
}

// wasm encodes the program as a module. The module exports the last function under the name "run".
func wasm(functions []function) []byte {
	b := []byte{0, 'a', 's', 'm', 1, 0, 0, 0}
	section := func(id byte, text []byte) { b = append(uleb(append(b, id), uint32(len(text))), text...) }
	section(1, []byte{1, 0x60, 0, 0})
	list := uleb(nil, uint32(len(functions)))
	for range functions {
		list = append(list, 0)
	}
	section(3, list)
	section(5, []byte{1, 1, 1, 3})
	section(6, []byte{globals, 0x7f, 1, 0x41, 0, 0x0b, 0x7f, 1, 0x41, 0, 0x0b})
	section(7, append(append(append([]byte{2, 3}, "run"...), 0), append(uleb(nil, uint32(len(functions)-1)), append([]byte{3}, "mem\x02\x00"...)...)...))
	code := uleb(nil, uint32(len(functions)))
	for _, f := range functions {
		body := []byte{0}
		if f.locals > 0 {
			body = append(uleb([]byte{1}, uint32(f.locals)), 0x7f)
		}
		body = append(putAll(body, f.body), 0x0b)
		code = append(uleb(code, uint32(len(body))), body...)
	}
	section(10, code)
	return b
}

type generator struct {
	t      *rapid.T
	fn     int
	locals uint32
	// labels has one element for each open block, from the outermost to the innermost block. An element is true if a
	// branch may leave the block.
	labels      []bool
	dispatchers []openDispatcher
	nodesLeft   int
}

func (m *generator) n(most int, label string) int { return rapid.IntRange(0, most).Draw(m.t, label) }

func (m *generator) expr(depth int) expr {
	kind := m.n(6, "expr")
	if depth <= 0 {
		kind %= 3
	}
	switch kind {
	case 0:
		return number(rapid.Int32().Draw(m.t, "number"))
	case 1:
		return local(m.n(int(m.locals)-1, "local"))
	case 2:
		return globalOf(m.n(globals-1, "global"))
	case 3:
		return load{m.expr(depth - 1)}
	}
	op := []byte{0x6a, 0x6b, 0x6c, 0x73, 0x48}[m.n(4, "op")]
	return operation{op, m.expr(depth - 1), m.expr(depth - 1)}
}

func (m *generator) body(depth int, labels ...bool) []node {
	m.labels = append(m.labels, labels...)
	var nodes []node
	for range m.n(5, "nodes") {
		if m.nodesLeft--; m.nodesLeft < 0 {
			break
		}
		nodes = append(nodes, m.node(depth))
	}
	m.labels = m.labels[:len(m.labels)-len(labels)]
	return nodes
}

func (m *generator) node(depth int) node {
	kind := m.n(17, "node")
	if depth <= 0 && kind < 15 {
		kind %= 5
	}
	switch kind {
	case 0, 1:
		// The last locals are reserved for loop counters.
		return setLocal{uint32(m.n(int(m.locals)-6, "to")), m.expr(2)}
	case 2:
		return setGlobal{uint32(m.n(globals-1, "to")), m.expr(2)}
	case 3:
		return store{m.expr(1), m.expr(1)}
	case 4:
		if m.n(1, "bulk") == 0 {
			return grow{int32(m.n(2, "pages"))}
		}
		return fill{m.expr(1), m.expr(1), m.expr(1)}
	case 5, 6:
		return choice{m.expr(2), m.body(depth-1, true), m.body(depth-1, true)}
	case 7, 8:
		return loop{m.locals - uint32(depth), int32(1 + m.n(4, "times")), m.body(depth-1, false)}
	case 9:
		return block{m.body(depth-1, true)}
	case 10:
		return table{m.expr(1), m.body(depth-1, true, true), m.body(depth-1, true), m.body(depth - 1)}
	case 11:
		if m.fn == 0 {
			return returnIf{m.expr(2)}
		}
		return call{uint32(m.n(m.fn-1, "function"))}
	case 12:
		return returnIf{m.expr(2)}
	case 13, 14:
		return m.dispatcher(depth)
	case 15, 16:
		if len(m.dispatchers) > 0 {
			return m.jump()
		}
		return block{}
	}
	var may []uint32
	for i := range m.labels {
		if m.labels[len(m.labels)-1-i] {
			may = append(may, uint32(i))
		}
	}
	if len(may) == 0 {
		return block{}
	}
	to := may[m.n(len(may)-1, "label")]
	if m.n(3, "always") == 0 {
		return branchAlways{to}
	}
	return branchIf{m.expr(2), to}
}

func program(t *rapid.T) []function {
	var functions []function
	for i := range 1 + rapid.IntRange(0, 3).Draw(t, "functions") {
		// Five locals are counters for nested loops, and at least one local is for other values.
		m := &generator{t: t, fn: i, locals: uint32(rapid.IntRange(6, 9).Draw(t, "locals")), nodesLeft: 40}
		body := m.body(4)
		if m.n(1, "dispatches") == 0 {
			body = append(body, m.dispatcher(4))
		}
		functions = append(functions, function{int(m.locals), body})
	}
	return functions
}
