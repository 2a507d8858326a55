package module

// Go's compiler turns a function into one loop that selects, at its start, the next part of the code by a number in a
// local. Each jump sets the number and branches to the start of the loop, so each jump would be charged and checked
// there. If the number is a constant and its part comes later in the code, the jump is replaced by a direct branch to
// the part. The result is the same without the selection, and because such a branch never goes back, no iteration of a
// loop is without a check. It branches to the end of an open block, so for charges and saved locals it is like any
// forward branch.
//
// A jump from outside into a part that belongs to a loop of such jumps is not replaced: because of a second entry the
// engine would move the values that the loop keeps in registers in each iteration.

// A dispatcher is a loop that selects the next part of its code. There is a part after each of the blocks at its start,
// in the order in which the blocks end.
type dispatcher struct {
	// id is the index among the dispatchers of the function.
	id int
	// frame is the index of the loop among the open blocks, and inner the index of the last block at its start.
	frame, inner int
	// local is the local with the number of the next part. parts has the parts by number; the last one is for all other
	// numbers.
	local uint32
	parts []int
	// part is the part to which the present code belongs; none before the first part begins.
	part int
}

// jumps describes the dispatchers of a function.
type jumps struct {
	// frames has, for each open block, its index in around, if it is a dispatcher.
	frames []int
	around []dispatcher
	// back has, for each dispatcher and each part, the last part from which a jump goes back to it; -1 if there is
	// none. After all code was read, learn computes from it loops: for each part, the part with which its innermost
	// loop begins.
	back, loops [][]int
	// next is the id of the next dispatcher.
	next int
	last
}

// last is what is known from the last instructions.
type last struct {
	// start is the loop that has nothing yet but starts of blocks; none if there is no such loop. finds is true if the
	// last instruction read a local as the first thing after these starts.
	start int
	finds bool
	// known is true if the last instruction was a constant, number. sets is true if it set a local to the constant.
	known, sets bool
	number      uint32
	// local is the local that was read or set.
	local uint32
}

// none is the index of no block, part or dispatcher.
const none = -1

// begin starts to read a function. loops are nil in the first pass, and known in the second.
func (j *jumps) begin(loops [][]int) {
	*j = jumps{frames: j.frames[:0], around: j.around[:0], loops: loops, last: last{start: none}}
}

// follow processes an instruction. If loops are known, it replaces a jump by a direct branch where that is possible.
func (j *jumps) follow(i *instruction) {
	was := j.last
	j.last = last{start: none}
	switch i.op {
	case opLoop:
		j.frames = append(j.frames, none)
		if i.plain {
			j.start = len(j.frames) - 1
		}
	case opBlock:
		j.frames = append(j.frames, none)
		if i.plain && !was.finds {
			j.start = was.start
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
		if was.start != none && !was.finds { // other values would stay on the stack
			j.start, j.finds, j.local = was.start, true, i.local
		}
	case opBrTable:
		if was.finds {
			j.dispatch(was, i.labels)
		}
	case opI32Const:
		j.known, j.number = true, i.number
	case opLocalSet:
		j.sets, j.number, j.local = was.known, was.number, i.local
	case opBr:
		if was.sets {
			j.jump(was, i)
		}
	}
}

// dispatch records that a loop is a dispatcher.
func (j *jumps) dispatch(was last, labels []uint32) {
	d := dispatcher{id: j.next, frame: was.start, inner: len(j.frames) - 1, local: was.local, part: none}
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

// jump processes a branch after a local was set to a constant.
func (j *jumps) jump(was last, i *instruction) {
	inner := len(j.frames) - 1
	to := inner - int(i.labels[0])
	if to < 0 || j.frames[to] == none {
		return
	}
	d := &j.around[j.frames[to]]
	part := d.parts[min(uint64(was.number), uint64(len(d.parts)-1))]
	switch {
	case d.local != was.local || part == none:
	case part <= d.part:
		if j.loops == nil {
			j.back[d.id][part] = max(j.back[d.id][part], d.part)
		}
	case j.loops != nil && j.loops[d.id][part] <= d.part:
		i.labels[0] = uint32(inner - (d.inner - part))
		i.text = putU32(append(i.text[:0], opBr), i.labels[0])
	}
}

// learn computes the loops of parts from the jumps that go back.
func (j *jumps) learn() (all [][]int) {
	for _, back := range j.back {
		loops := make([]int, len(back))
		var open []int // first parts of loops that have not ended, and of some that have
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
