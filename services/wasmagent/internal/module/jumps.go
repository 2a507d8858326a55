package module

// Go's compiler makes of a function one loop that finds, at its start, the part of the code that
// is next, by a number in a local. Each jump sets the number and goes back to the loop: it would
// be charged there, and looked after, at every jump. Where the number is a constant and its part
// stands further on, the jump is made to go there at once. That does the same, without finding
// the part; and as it never goes back, no turn of a loop is without a look. It goes to the end of
// a block that is still open, so for what is charged, and what is put aside, it is any branch
// forward.
//
// A jump from outside into what is a loop of such jumps is left as it was: for another way in
// the engine would move what the loop keeps in registers, in each turn.

// A dispatcher is a loop that finds which part of its code is next. There is a part behind each
// of the blocks at its start, in the order in which they end.
type dispatcher struct {
	// id is its place among those of the function.
	id int
	// frame is the loop's place among the open blocks, and inner that of the last block at its
	// start.
	frame, inner int
	// local has the number of the part that is next, and parts are the parts by number; what is
	// none of the numbers goes where the last one does.
	local uint32
	parts []int
	// part is that in which the code stands; none before the first begins.
	part int
}

// jumps is what is known of the dispatchers of a function.
type jumps struct {
	// frames has for each open block its place in around, if it is a dispatcher.
	frames []int
	around []dispatcher
	// back has, for each dispatcher, for each part the last one from which a jump goes back to it; -1
	// where none does. Once all was read it is told from them where loops are: loops has for
	// each part where the innermost begins that it is in.
	back, loops [][]int
	// next is the id of the next dispatcher.
	next int
	last
}

// last is what is known from the last instructions.
type last struct {
	// start is the loop in which there was nothing yet but the start of blocks; none where there
	// is no such. finds says that the last instruction read a local, the first thing behind them.
	start int
	finds bool
	// known says that the last instruction was a constant, number, and sets that it set a local
	// to it.
	known, sets bool
	number      uint32
	// local is the one that was read or set.
	local uint32
}

// none is no block, no part, and no dispatcher.
const none = -1

// begin begins the reading of a function, or its second where its loops are known.
func (j *jumps) begin(loops [][]int) {
	*j = jumps{frames: j.frames[:0], around: j.around[:0], loops: loops, last: last{start: none}}
}

// follow follows an instruction. Where loops are known it makes a jump a direct one, if it may
// be.
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
		if was.start != none && !was.finds { // what else is read would stay on the stack
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

// dispatch notes that a loop is a dispatcher.
func (j *jumps) dispatch(was last, labels []uint32) {
	d := dispatcher{id: j.next, frame: was.start, inner: len(j.frames) - 1, local: was.local, part: none}
	for _, label := range labels {
		part := int(label)
		if d.inner-part <= d.frame { // the loop itself, or what is around it
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

// jump follows a branch behind a number that was set.
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

// learn makes, of the jumps that go back, the loops.
func (j *jumps) learn() (all [][]int) {
	for _, back := range j.back {
		loops := make([]int, len(back))
		var open []int // the parts where loops begin that have not ended, and some that have
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
