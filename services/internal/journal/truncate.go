package journal

import (
	"bytes"
	"strconv"
)

// minZeroBytes is the minimum number of consecutive zero bytes that are treated as a block that was not written because
// of a power failure.
const minZeroBytes = 512

// isIncomplete reports whether the bytes after a segment's last good line can be the result of a crash. A crash can
// leave the beginning of the next record's line, or blocks that were never written. It can't leave complete lines that
// are not records.
func isIncomplete(rest []byte, due int64) bool {
	if bytes.HasSuffix(rest, []byte{0}) || bytes.Contains(rest, make([]byte, minZeroBytes)) {
		return !anyReadable(rest)
	}
	start := strconv.AppendInt([]byte(`{"seq":`), due, 10)
	start = append(start, `,"time":"`...)
	n := min(len(start), len(rest))
	if bytes.IndexByte(rest, '\n') >= 0 || !bytes.Equal(rest[:n], start[:n]) {
		return false
	}
	_, err := parse(rest[:max(0, len(rest)-1)]) // if this is a record, its newline was replaced, which a crash can't do
	return err != nil
}

func anyReadable(data []byte) bool {
	for line := range linesOf(data) {
		if _, err := parse(line); err == nil {
			return true
		}
	}
	return false
}
