package journal

import (
	"math"
	"time"
)

// Capacity contains the number of bytes that the records of calls may use, and the number that they use now.
type Capacity struct {
	Bytes, Used int64
	// Duration is the time until the whole capacity is used at the rate of the stored records. It is 0 if there are too
	// few records to compute it.
	Duration time.Duration
}

// Capacity returns the capacity for the records of calls and its use.
func (j *Journal) Capacity() Capacity {
	room := Capacity{Bytes: j.calls.retention.Bytes}
	segments := j.calls.view()
	for _, s := range segments {
		room.Used += s.size
	}
	if len(segments) < 2 {
		return room
	}
	first := segments[0]
	room.Duration = remainingTime(room.Bytes, room.Used-first.size, time.Since(first.newest))
	return room
}

// remainingTime returns the time until room bytes are used, if used bytes were written in the time within.
func remainingTime(room, used int64, within time.Duration) time.Duration {
	if room <= 0 || used <= 0 || within <= 0 {
		return 0
	}
	return time.Duration(min(float64(within)*(float64(room)/float64(used)), math.MaxInt64/2))
}
