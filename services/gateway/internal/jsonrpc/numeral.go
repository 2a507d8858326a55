package jsonrpc

import "bytes"

// A numeral contains the parts of a number as it is written in decimal.
type numeral struct {
	negative, integer bool
	// whole contains the digits before the point, without leading zeros. fraction contains the digits after the point.
	whole, fraction []byte
	// exponent contains the digits of the exponent. shrinks is true if the exponent is negative.
	exponent []byte
	shrinks  bool
}

// isOutOfRange reports whether the number is an integer that does not fit into int64, or a number that is not finite as
// a float64.
func (n *numeral) isOutOfRange() bool {
	if !n.integer {
		return !n.finite()
	}
	if n.negative {
		return !atMost(n.whole, "9223372036854775808")
	}
	return !atMost(n.whole, "9223372036854775807")
}

// infinity contains the first digits of 2^1024 - 2^970, the smallest number that is rounded to infinity as a
// float64. This integer has infinityPlaces digits. Its first digits are enough for a comparison, because the parser
// accepts only numbers that are written with fewer digits than infinity contains, and so never the integer itself.
const (
	infinity       = "1797693134862315807937289714053034150799341327100378269361737789804449682927647509466490179775872070"
	infinityPlaces = 309
)

// finite reports whether the number is finite as a float64. It compares digits, because converting a number with many
// digits to a float64 is slow.
func (n *numeral) finite() bool {
	if len(n.whole) <= 200 && len(n.exponent) <= 2 {
		return true
	}
	var space [len(infinity)]byte
	digits := append(append(space[:0], n.whole...), n.fraction...)
	significant := bytes.TrimLeft(digits, "0")
	if len(significant) == 0 || n.shrinks {
		return true
	}
	exponent := 0
	for _, c := range n.exponent {
		exponent = min(10*exponent+int(c-'0'), 1<<20)
	}
	places := len(n.whole) - (len(digits) - len(significant)) + exponent
	return places < infinityPlaces || places == infinityPlaces && string(significant) < infinity
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// atMost reports whether the number in digits is at most limit. Both are decimal integers without leading zeros.
func atMost(digits []byte, limit string) bool {
	if len(digits) != len(limit) {
		return len(digits) < len(limit)
	}
	return string(digits) <= limit
}
