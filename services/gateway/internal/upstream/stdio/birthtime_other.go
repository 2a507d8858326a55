//go:build unix && !linux

package stdio

import "time"

// birthTime never knows the birth time of a file, because this system has no statx(2).
func birthTime(int, string) (at time.Time, mount uint64, known bool) { return time.Time{}, 0, false }
