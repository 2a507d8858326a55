package attempt

import (
	"slices"
	"sync"
	"time"
)

const (
	// splitDuration is how long limited calls are refused after two instances of the ratelimit role answered in turn.
	splitDuration = time.Minute
	// maxInstances is how many earlier instances are remembered. Each restart of the role adds one.
	maxInstances = 16
)

// instances detects that more than one ratelimit role answers. Each role counts for itself, so two of them would
// double every limit. An instance that is replaced by a new one is a restart; one that returns is a second role. The
// zero value knows no instance. It is safe for concurrent use.
type instances struct {
	mu      sync.Mutex
	current string
	// since is when current answered first.
	since      time.Time
	earlier    []string
	splitUntil time.Time
}

// observe records that instance answered a request sent at asked, and reports whether two instances have answered in
// turn within splitFor. Late answers of a replaced instance do not count. An empty instance is a role of an earlier
// version, which cannot be distinguished from others.
func (i *instances) observe(instance string, asked time.Time) bool {
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
		i.splitUntil = now.Add(splitDuration)
		i.current, i.since = instance, now
	default:
		i.earlier = append(i.earlier, instance)
		i.earlier = i.earlier[max(0, len(i.earlier)-maxInstances):]
		i.current, i.since = instance, now
	}
	return now.Before(i.splitUntil)
}

// isSplit reports whether limited calls are refused because two instances answered in turn.
func (i *instances) isSplit() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return time.Now().Before(i.splitUntil)
}
