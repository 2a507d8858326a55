//go:build unix && !linux

package stdio

import "time"

// birthTime is not implemented on this system. known is always false.
func birthTime(int, string) (at time.Time, mount uint64, known bool) { return time.Time{}, 0, false }
