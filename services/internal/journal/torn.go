package journal

import (
	"bytes"
	"strconv"
)

// minHole is how many zero bytes in a row are what a loss of power left of a block
// that was never written.
const minHole = 512

// isTorn reports whether what stands behind a segment's last good line is what a crash
// leaves there: the begun line of the record that is due, or blocks that were never
// written. Whole lines that are no records are something else: a crash makes none.
func isTorn(rest []byte, due int64) bool {
	if bytes.HasSuffix(rest, []byte{0}) || bytes.Contains(rest, make([]byte, minHole)) {
		return !anyReadable(rest)
	}
	start := strconv.AppendInt([]byte(`{"seq":`), due, 10)
	start = append(start, `,"time":"`...)
	n := min(len(start), len(rest))
	if bytes.IndexByte(rest, '\n') >= 0 || !bytes.Equal(rest[:n], start[:n]) {
		return false
	}
	_, err := parse(rest[:max(0, len(rest)-1)]) // a record whose newline became another byte
	return err != nil
}

// anyReadable says whether one of the lines is a record.
func anyReadable(data []byte) bool {
	for line := range linesOf(data) {
		if _, err := parse(line); err == nil {
			return true
		}
	}
	return false
}
