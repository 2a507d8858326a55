package condition

import (
	"regexp/syntax"
	"slices"
)

// anchored reports whether each alternative in a pattern has anchors at both ends, so that the pattern matches only
// whole strings. A pattern with `(?m)` is not anchored, because its anchors also match at line breaks.
func anchored(pattern *syntax.Regexp) bool {
	return hasAnchor(pattern, syntax.OpBeginText, 0) && hasAnchor(pattern, syntax.OpEndText, -1)
}

// hasAnchor reports whether a pattern has the anchor at its start (end is 0) or at its end (end is -1).
func hasAnchor(pattern *syntax.Regexp, anchor syntax.Op, end int) bool {
	switch pattern.Op { //nolint:exhaustive // the other operators match characters
	case anchor:
		return true
	case syntax.OpCapture, syntax.OpPlus:
		return hasAnchor(pattern.Sub[0], anchor, end)
	case syntax.OpAlternate:
		return !slices.ContainsFunc(pattern.Sub, func(sub *syntax.Regexp) bool { return !hasAnchor(sub, anchor, end) })
	case syntax.OpConcat:
		at := 0
		if end < 0 {
			at = len(pattern.Sub) - 1
		}
		return len(pattern.Sub) > 0 && hasAnchor(pattern.Sub[at], anchor, end)
	}
	return false
}

// tricks contains characters that can change the meaning of a path or URL for some servers. A pattern may contain them
// as literal characters, but not in a character class.
const tricks = "\\%@?#\x00\n\t"

// These are the states for exploring a pattern. A state describes the part of the current path segment that has been
// read so far.
const (
	segmentStart = iota // nothing
	segmentDot          // "."
	segmentDots         // ".."
	segmentName         // any other text
	segmentStates
)

// admitsTricks reports whether an anchored pattern accepts a path with a segment `..`, or has a character class that
// contains one of the [tricks]. It explores all states of the compiled pattern. [compilePattern] must have accepted the
// pattern.
func admitsTricks(pattern *syntax.Regexp) bool {
	program, err := syntax.Compile(pattern.Simplify())
	if err != nil {
		return true
	}
	seen := make([]bool, len(program.Inst)*segmentStates)
	next := []int{program.Start*segmentStates + segmentStart}
	for len(next) > 0 {
		at := next[len(next)-1]
		next = next[:len(next)-1]
		if seen[at] {
			continue
		}
		seen[at] = true
		steps, trick := walk(&program.Inst[at/segmentStates], at%segmentStates)
		if trick {
			return true
		}
		next = append(next, steps...)
	}
	return false
}

// walk returns the instructions and states that can follow the instruction inst in the given state. It returns true if
// the instruction ends a segment `..`, or has a character class that contains one of the [tricks].
func walk(inst *syntax.Inst, state int) (steps []int, trick bool) {
	to := func(pc uint32, state int) { steps = append(steps, int(pc)*segmentStates+state) }
	switch inst.Op {
	case syntax.InstAlt, syntax.InstAltMatch:
		to(inst.Out, state)
		to(inst.Arg, state)
	case syntax.InstCapture, syntax.InstEmptyWidth, syntax.InstNop:
		to(inst.Out, state)
	case syntax.InstMatch:
		return nil, state == segmentDots
	case syntax.InstFail:
	case syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
		return nil, true
	case syntax.InstRune, syntax.InstRune1:
		return walkRune(inst, state)
	}
	return steps, false
}

// walkRune implements [walk] for instructions that consume a character.
func walkRune(inst *syntax.Inst, state int) (steps []int, trick bool) {
	to := func(state int) { steps = append(steps, int(inst.Out)*segmentStates+state) }
	only := len(inst.Rune) == 1 || len(inst.Rune) == 2 && inst.Rune[0] == inst.Rune[1]
	for _, r := range tricks {
		if !only && inst.MatchRune(r) {
			return nil, true
		}
	}
	slash, dot := inst.MatchRune('/'), inst.MatchRune('.')
	if slash {
		if state == segmentDots {
			return nil, true
		}
		to(segmentStart)
	}
	if dot {
		to(min(state+1, segmentName))
	}
	if !only || !slash && !dot {
		to(segmentName)
	}
	return steps, false
}

// admits reports whether a pattern has a character class that contains one of the given characters. [compilePattern]
// must have accepted the pattern.
func admits(pattern *syntax.Regexp, chars string) bool {
	program, err := syntax.Compile(pattern.Simplify())
	if err != nil {
		return true
	}
	for i := range program.Inst {
		inst := &program.Inst[i]
		switch inst.Op { //nolint:exhaustive // the other instructions have no character class
		case syntax.InstRune, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			for _, c := range chars {
				if inst.MatchRune(c) {
					return true
				}
			}
		}
	}
	return false
}
