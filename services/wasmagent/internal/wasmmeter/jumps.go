package wasmmeter

// Go's compiler turns a function into one loop, which this file calls a dispatcher. At the beginning of the loop, the
// code uses the number in a local to select the next part of the code. A jump to another part sets the number and
// branches to the beginning of the loop. Without special treatment, each jump would be charged for the selection and
// would check the fuel.
//
// This file replaces a jump with a direct branch to the part if the number is a constant and the part comes later in
// the code. The direct branch skips the selection and has the same result. A direct branch never goes back, so each
// iteration of a loop still checks the fuel. A direct branch goes to the end of an open block, so it is charged like
// every other forward branch.
//
// Jumps between parts can form a loop. A jump into the middle of such a loop is not replaced, because the direct branch
// would be a second entry into the loop. In each iteration, the engine would then have to move the values that the loop
// keeps in registers.

// A dispatcher is a loop that uses a number to select the next part of its code. The beginning of the loop opens one
// block for each part. Each part begins after the end of its block.
type dispatcher struct {
	id int
	// frame is the index of the loop among the open blocks. inner is the index of the innermost block that the
	// beginning of the loop opens.
	frame, inner int
	// local is the index of the local that contains the number of the next part. parts maps each number to a part. Its
	// last element is the part for all other numbers.
	local uint32
	parts []int
	// part is the part to which the current code belongs, or none before the first part.
	part int
}

type jumps struct {
	// frames has one element for each open block. If the block is a dispatcher, the element is the dispatcher's index
	// in around. Otherwise, the element has the value none.
	frames []int
	around []dispatcher
	// back and loops have an element for each part of each dispatcher. The element of back for a part is the last part
	// from which a jump goes back to it, or none if there is no such jump. After all code has been read, partLoops
	// computes loops from back. The element of loops for a part is the first part of the innermost loop that contains the
	// part.
	back, loops [][]int
	next        int
	lastInstructions
}

type lastInstructions struct {
	// loopStart is the index of a loop if only beginnings of blocks were read since the loop began, and otherwise none.
	// readsLocal is true if the last instruction reads a local and directly follows these beginnings of blocks.
	loopStart  int
	readsLocal bool
	// isConstant is true if the last instruction is a constant, and number is its value. setsLocal is true if the last
	// two instructions set a local to the constant number.
	isConstant, setsLocal bool
	number                uint32
	local                 uint32
}

// none is used instead of an index if there is no block, part or dispatcher.
const none = -1

// begin prepares for reading a function. In the first pass, loops is nil. In the second pass, loops is the result of
// partLoops.
func (j *jumps) begin(loops [][]int) {
	*j = jumps{frames: j.frames[:0], around: j.around[:0], loops: loops, lastInstructions: lastInstructions{loopStart: none}}
}

// follow processes the next instruction. In the second pass, it replaces a jump with a direct branch where possible.
func (j *jumps) follow(i *instruction) {
	previous := j.lastInstructions
	j.lastInstructions = lastInstructions{loopStart: none}
	switch i.op {
	case opLoop:
		j.frames = append(j.frames, none)
		if i.hasNoValues {
			j.loopStart = len(j.frames) - 1
		}
	case opBlock:
		j.frames = append(j.frames, none)
		if i.hasNoValues && !previous.readsLocal {
			j.loopStart = previous.loopStart
		}
	case opIf:
		j.frames = append(j.frames, none)
	case opEnd:
		ended := len(j.frames) - 1
		j.frames = j.frames[:ended]
		switch n := len(j.around) - 1; {
		case n < 0:
		case j.around[n].frame == ended:
			j.around = j.around[:n]
		default:
			j.around[n].part = max(j.around[n].part, j.around[n].inner-ended)
		}
	case opLocalGet:
		if previous.loopStart != none && !previous.readsLocal { // a second value would stay on the operand stack
			j.loopStart, j.readsLocal, j.local = previous.loopStart, true, i.local
		}
	case opBrTable:
		if previous.readsLocal {
			j.dispatch(previous, i.labels)
		}
	case opI32Const:
		j.isConstant, j.number = true, i.number
	case opLocalSet:
		j.setsLocal, j.number, j.local = previous.isConstant, previous.number, i.local
	case opBr:
		if previous.setsLocal {
			j.jump(previous, i)
		}
	}
}

// dispatch records that a loop is a dispatcher.
func (j *jumps) dispatch(previous lastInstructions, labels []uint32) {
	d := dispatcher{id: j.next, frame: previous.loopStart, inner: len(j.frames) - 1, local: previous.local, part: none}
	for _, label := range labels {
		part := int(label)
		if d.inner-part <= d.frame { // the loop itself, or a block around it
			part = none
		}
		d.parts = append(d.parts, part)
	}
	j.next++
	j.frames[d.frame] = len(j.around)
	j.around = append(j.around, d)
	if j.loops == nil {
		back := make([]int, d.inner-d.frame)
		for part := range back {
			back[part] = none
		}
		j.back = append(j.back, back)
	}
}

// jump processes a branch that directly follows the instructions that set a local to a constant.
func (j *jumps) jump(previous lastInstructions, i *instruction) {
	inner := len(j.frames) - 1
	to := inner - int(i.labels[0])
	if to < 0 || j.frames[to] == none {
		return
	}
	d := &j.around[j.frames[to]]
	part := d.parts[min(uint64(previous.number), uint64(len(d.parts)-1))]
	switch {
	case d.local != previous.local || part == none:
	case part <= d.part:
		if j.loops == nil {
			j.back[d.id][part] = max(j.back[d.id][part], d.part)
		}
	case j.loops != nil && j.loops[d.id][part] <= d.part:
		i.labels[0] = uint32(inner - (d.inner - part))
		i.text = putU32(append(i.text[:0], opBr), i.labels[0])
	}
}

// partLoops computes the loops from the jumps that go back. It returns nil if the function has no dispatcher.
func (j *jumps) partLoops() (all [][]int) {
	for _, back := range j.back {
		loops := make([]int, len(back))
		var open []int // the first parts of loops, some of which may have ended
		for part, last := range back {
			if last != none {
				open = append(open, part)
			}
			for len(open) > 0 && back[open[len(open)-1]] < part {
				open = open[:len(open)-1]
			}
			loops[part] = none
			if len(open) > 0 {
				loops[part] = open[len(open)-1]
			}
		}
		all = append(all, loops)
	}
	return all
}
