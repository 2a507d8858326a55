package wasmmeter_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

// These nodes model the code that Go's compiler generates. This code consists of a loop that selects its next part by a
// number, and of jumps that set the number.
type (
	dispatcher struct {
		number, count uint32
		times         int32
		// numbers maps each number to a part. The last element is the part for all other numbers.
		numbers []int
		parts   [][]node
		// reads contains the locals that are read between the start of the loop and its blocks. Their values stay on
		// the operand stack until the end of the loop, where they are written to a global. Therefore, no jump may skip
		// these reads.
		reads []uint32
		// back contains an element for each jump that goes back. An element consists of the index of the part with the
		// jump, and the index of the part to which the jump goes.
		back [][2]int
	}
	// A jump sets a local to a number and branches to the dispatcher. The field sets is the index of the local. The
	// field from is the index of the part that contains the jump, and blocks is the number of blocks around the jump.
	// If the jump goes back, or sets a local other than the dispatcher's, the dispatcher's counter limits it. Every
	// other jump is taken if cond is nil or not 0.
	jump struct {
		to     *dispatcher
		sets   uint32
		number int32
		from   int
		blocks uint32
		cond   expr
	}
)

func (d *dispatcher) part(number int32) int {
	return d.numbers[min(uint64(uint32(number)), uint64(len(d.numbers)-1))]
}

func (d *dispatcher) run(f *frame) signal {
	f.instructions += 2
	f.locals[d.count] = d.times
	for {
		f.points++
		f.instructions += 2 + int64(len(d.reads))
		var read []int32
		for _, l := range d.reads {
			read = append(read, f.locals[l])
		}
		result := signal(0)
		for part := d.part(f.locals[d.number]); ; part++ {
			if part == len(d.parts) {
				for _, v := range slices.Backward(read) {
					f.instructions++
					f.globals[0] = v
				}
				return 0
			}
			if result = runAll(f, d.parts[part]); result < 0 {
				return result
			}
			blocks := len(d.parts) - 1 - part // the blocks that have not ended, inside the loop
			if result > signal(blocks) {
				result -= signal(blocks) + 1
				break
			}
			part += max(0, int(result)-1)
		}
		if result > 0 {
			return result
		}
		if f.instructions > maxInstructions {
			return leaveFunction
		}
	}
}

func (d *dispatcher) put(b []byte) []byte {
	b = uleb(append(sleb(append(b, 0x41), int64(d.times)), 0x21), d.count)
	b = append(b, 0x03, 0x40)
	for _, l := range d.reads {
		b = uleb(append(b, 0x20), l)
	}
	for range d.parts {
		b = append(b, 0x02, 0x40)
	}
	b = uleb(append(uleb(append(b, 0x20), d.number), 0x0e), uint32(len(d.numbers)-1))
	for _, part := range d.numbers {
		b = uleb(b, uint32(part))
	}
	for _, body := range d.parts {
		b = putAll(append(b, 0x0b), body)
	}
	for range d.reads {
		b = append(b, 0x24, 0)
	}
	return append(b, 0x0b)
}

// isCounted reports whether the dispatcher's counter limits the jump.
func (j jump) isCounted() bool { return j.sets != j.to.number || j.to.part(j.number) <= j.from }

// isDirect reports whether the meter must replace the jump with a direct branch. This is the case if the jump goes
// forward, does not enter a loop from outside, and leaves no values on the operand stack.
func (j jump) isDirect() bool {
	to := j.to.part(j.number)
	return !j.isCounted() && len(j.to.reads) == 0 && !slices.ContainsFunc(j.to.back, func(back [2]int) bool {
		return j.from < back[1] && back[1] <= to && to <= back[0]
	})
}

func (j jump) run(f *frame) signal {
	switch {
	case j.isCounted():
		f.instructions += 7
		if f.locals[j.to.count]--; f.locals[j.to.count] <= 0 {
			return 0
		}
	case j.cond != nil:
		v := j.cond.value(f)
		f.instructions++
		if v == 0 {
			return 0
		}
	}
	f.instructions += 3
	f.locals[j.sets] = j.number
	if j.isDirect() {
		return signal(int(j.blocks) - (len(j.to.parts) - j.to.part(j.number)) + 1)
	}
	return signal(j.blocks + 1)
}

func (j jump) put(b []byte) []byte {
	maybe := true
	switch {
	case j.isCounted():
		b = append(uleb(append(b, 0x41, 0, 0x20), j.to.count), 0x41, 1, 0x6b)
		b = append(uleb(append(b, 0x22), j.to.count), 0x48, 0x04, 0x40)
	case j.cond != nil:
		b = append(j.cond.put(b), 0x04, 0x40)
	default:
		maybe = false
	}
	b = uleb(append(sleb(append(b, 0x41), int64(j.number)), 0x21), j.sets)
	if maybe {
		return append(uleb(append(b, 0x0c), j.blocks+1), 0x0b)
	}
	return uleb(append(b, 0x0c), j.blocks)
}

// An openDispatcher is a dispatcher that is being generated. part is its current part, and around is the number of
// labels that enclose its loop.
type openDispatcher struct {
	*dispatcher
	part, around int
}

func (m *generator) dispatcher(depth int) node {
	d := &dispatcher{
		number: uint32(m.n(int(m.locals)-6, "number")), count: m.locals - uint32(depth),
		times: int32(1 + m.n(4, "times")), parts: make([][]node, 1+m.n(4, "parts")),
	}
	for range 1 + m.n(len(d.parts)+1, "numbers") {
		d.numbers = append(d.numbers, m.n(len(d.parts)-1, "part"))
	}
	if m.n(4, "reads") == 0 {
		for range m.n(3, "reads") {
			d.reads = append(d.reads, uint32(m.n(int(m.locals)-1, "read")))
		}
	}
	m.dispatchers = append(m.dispatchers, openDispatcher{d, 0, len(m.labels)})
	for part := range d.parts {
		m.dispatchers[len(m.dispatchers)-1].part = part
		labels := make([]bool, len(d.parts)-part)
		for i := range labels {
			labels[i] = i > 0 // the first label is the loop
		}
		d.parts[part] = m.body(depth-1, labels...)
		if m.n(1, "jump") == 0 {
			m.labels = append(m.labels, labels...)
			d.parts[part] = append(d.parts[part], m.jump())
			m.labels = m.labels[:len(m.labels)-len(labels)]
		}
	}
	m.dispatchers = m.dispatchers[:len(m.dispatchers)-1]
	return d
}

func (m *generator) jump() node {
	to := m.dispatchers[m.n(len(m.dispatchers)-1, "dispatcher")]
	j := jump{to: to.dispatcher, sets: to.number, number: rapid.OneOf(rapid.Int32Range(-1, int32(len(to.numbers))), rapid.Int32()).Draw(m.t, "number"), from: to.part, blocks: uint32(len(m.labels) - 1 - to.around)}
	if m.n(7, "another") == 0 {
		j.sets = uint32(m.n(int(m.locals)-6, "sets"))
	}
	if m.n(3, "always") > 0 {
		j.cond = m.expr(2)
	}
	if part := to.dispatcher.part(j.number); j.sets == to.number && part <= j.from {
		to.back = append(to.back, [2]int{j.from, part})
	}
	return j
}

// A jump is not replaced with a direct branch if its dispatcher reads locals in each iteration, because the branch
// would skip the reads.
func TestMetered_KeepsJumpWhenDispatcherReadsLocals(t *testing.T) {
	t.Parallel()
	for reads := range 4 {
		d := &dispatcher{number: 2, count: 8, times: 1, numbers: []int{0, 1}, reads: make([]uint32, reads)}
		d.parts = [][]node{{setLocal{0, number(5)}, jump{to: d, sets: 2, number: 1, blocks: 1}}, {}}
		functions := []function{{9, []node{d}}}
		interpreter := &machine{functions: functions, memory: make([]byte, memorySize), pages: 1}
		interpreter.call(0)
		if want := int32(min(reads, 1) * 5); interpreter.globals[0] != want {
			t.Fatalf("with %d reads the global is %d here, want %d", reads, interpreter.globals[0], want)
		}
		for _, minSeparate := range []int64{0, wasmmeter.Grain} {
			runProgram(t, t, meterAt(t, wasm(functions), minSeparate), 1000).checkSame(t, interpreter)
		}
	}
}
