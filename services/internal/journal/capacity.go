package journal

import (
	"math"
	"time"
)

// Capacity contains the number of bytes that the records of calls may use, and the number of bytes that they use now.
type Capacity struct {
	Bytes, Used int64
	// Duration is how long the whole capacity would last at the rate of the stored records. It is 0 if there are too
	// few records to compute it.
	Duration time.Duration
}

// Capacity returns the capacity for the records of calls, and how much of it is used.
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

// remainingTime returns how long capacity bytes last if records fill them at a constant rate. The rate is the number of
// written bytes, divided by the elapsed time.
func remainingTime(capacity, written int64, elapsed time.Duration) time.Duration {
	if capacity <= 0 || written <= 0 || elapsed <= 0 {
		return 0
	}
	return time.Duration(min(float64(elapsed)*(float64(capacity)/float64(written)), math.MaxInt64/2))
}
