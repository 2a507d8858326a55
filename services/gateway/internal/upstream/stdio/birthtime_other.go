//go:build unix && !linux

package stdio

import "time"

// birthTime always returns false, because this system has no statx(2).
func birthTime(int, string) (at time.Time, mount uint64, known bool) { return time.Time{}, 0, false }
