package wasmmeter

// Go's compiler turns a function into one loop, the dispatcher. At its start, it selects the next part of the code by
// the number in a local. A jump to another part sets the number, and branches to the start of the loop. There, every
// jump would be charged, and the fuel would be checked.
//
// This file replaces a jump by a direct branch to its part, if the number is a constant and the part comes later in the
// code. The result is the same without the selection. A direct branch never goes back, so each iteration of a loop
// still
// has a check. It leads to the end of an open block, so it is charged like every other forward branch.
//
// A jump into the middle of a loop that consists of such jumps is not replaced. It would be a second entry of the loop,
// and the engine would then move the values that the loop keeps in registers in each iteration.

// A dispatcher is a loop that selects the next part of its code by a number. At its start, it opens a block for each
// part. Each part begins after the end of one of these blocks.
type dispatcher struct {
	// id is the index of the dispatcher in its function.
	id int
	// frame is the index of the loop among the open blocks. inner is the index of the innermost block at its start.
	frame, inner int
	// local is the index of the local with the number of the next part. parts has the part for each number. Its last
	// element is the part for all other numbers.
	local uint32
	parts []int
	// part is the part to which the present code belongs; none before the first part.
	part int
}

// jumps describes the dispatchers of a function.
type jumps struct {
	// frames has an element for each open block. If the block is a dispatcher, the element is its index in around;
	// otherwise it is noTarget.
	frames []int
	around []dispatcher
	// back has, for each dispatcher and each of its parts, the last part from which a jump goes back to the part; none
	// if there is no such jump. After all code was read, partLoops computes loops from it: for each part, the first
	// part of the innermost loop around it.
	back, loops [][]int
	// next is the id of the next dispatcher.
	next int
	lastInstructions
}

// lastInstructions describes the sequence of instructions that was read last.
type lastInstructions struct {
	// loopStart is the index of a loop after whose start only starts of blocks were read; none if there is no such
	// loop. readsLocal is true if the last instruction was the first one after these starts, and read a local.
	loopStart  int
	readsLocal bool
	// isConstant is true if the last instruction was a constant, and number is its value. setsLocal is true if the last
	// two instructions set a local to the constant.
	isConstant, setsLocal bool
	number                uint32
	// local is the local that was read or set.
	local uint32
}

// none is the index of no block, part or dispatcher.
const none = -1

// begin starts the reading of a function. loops is nil in the first pass. In the second pass, it is the result of
// partLoops.
func (j *jumps) begin(loops [][]int) {
	*j = jumps{frames: j.frames[:0], around: j.around[:0], loops: loops, lastInstructions: lastInstructions{loopStart: none}}
}

// follow processes the next instruction. In the second pass, it replaces a jump by a direct branch if that is possible.
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
		if previous.loopStart != none && !previous.readsLocal { // further values would stay on the stack
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

// jump processes a branch directly after a local was set to a constant.
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

// partLoops computes the loops of parts from the jumps that go back. It returns nil if the function has no dispatcher.
func (j *jumps) partLoops() (all [][]int) {
	for _, back := range j.back {
		loops := make([]int, len(back))
		var open []int // first parts of loops; some of these loops may have ended
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
