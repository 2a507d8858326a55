package journal

import (
	"math"
	"time"
)

// Room is how much room the records of calls have, and how much of it they take, in bytes.
type Room struct {
	Bytes, Used int64
	// Lasts is for how long the room holds records that come at the rate of those that are there; 0: too few are there.
	Lasts time.Duration
}

// Room returns how much room the records of calls have.
func (j *Journal) Room() Room {
	room := Room{Bytes: j.calls.retention.Bytes}
	segments := j.calls.view()
	for _, s := range segments {
		room.Used += s.size
	}
	if len(segments) < 2 {
		return room
	}
	first := segments[0]
	room.Lasts = lasting(room.Bytes, room.Used-first.size, time.Since(first.newest))
	return room
}

// lasting returns how long room is enough if used of it was taken within a time.
func lasting(room, used int64, within time.Duration) time.Duration {
	if room <= 0 || used <= 0 || within <= 0 {
		return 0
	}
	return time.Duration(min(float64(within)*(float64(room)/float64(used)), math.MaxInt64/2))
}
