package attempt

import (
	"slices"
	"sync"
	"time"
)

const (
	// splitFor is for how long limited calls are refused after two instances of the ratelimit role answered in turn.
	splitFor = time.Minute
	// maxInstances is how many earlier instances are remembered. One more is made at each restart of the role.
	maxInstances = 16
)

// instances finds out that more than one ratelimit role answers. Each counts for itself, so that every limit would be as
// many times as large. An instance that is replaced by another one is a restart; one that comes back is a second role.
// The zero value has heard of none. It is safe for concurrent use.
type instances struct {
	mu      sync.Mutex
	current string
	// since is when current was first heard of.
	since   time.Time
	earlier []string
	until   time.Time
}

// split takes the instance that has answered a question of that time, and reports whether two have answered in turn
// within splitFor. Late answers of an instance that has gone do not count. An empty instance is a role of an earlier
// version, which is not told from others.
func (i *instances) split(instance string, asked time.Time) bool {
	if instance == "" {
		return false
	}
	now := time.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	known := slices.Contains(i.earlier, instance)
	switch {
	case instance == i.current, known && asked.Before(i.since):
	case known:
		i.until = now.Add(splitFor)
		i.current, i.since = instance, now
	default:
		i.earlier = append(i.earlier, instance)
		i.earlier = i.earlier[max(0, len(i.earlier)-maxInstances):]
		i.current, i.since = instance, now
	}
	return now.Before(i.until)
}

// isSplit reports whether limited calls are refused because two instances answered in turn.
func (i *instances) isSplit() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return time.Now().Before(i.until)
}
