package attempt

import (
	"slices"
	"sync"
	"time"
)

const (
	// splitDuration is how long the gateway refuses calls with rate limits after two instances of the ratelimit service
	// have answered alternately.
	splitDuration = time.Minute
	// maxInstances limits how many instances are remembered. Each restart of the ratelimit service adds one.
	maxInstances = 16
)

// instances detects whether more than one instance of the ratelimit service answers. Each instance counts separately,
// so two instances would double every limit. If a new instance answers, instances assumes that the service was
// restarted. If an earlier instance then answers again, there are two instances. In the zero value, no instance has
// answered yet. The type is safe for concurrent use.
type instances struct {
	mu      sync.Mutex
	current string
	// since is the time of the first answer from the current instance.
	since      time.Time
	earlier    []string
	splitUntil time.Time
}

// observe records that an instance has answered a request that was sent at the given time. It reports whether two
// instances have answered alternately within splitDuration. It ignores late answers from a replaced instance. An empty
// instance means that the ratelimit service is too old to identify its instances.
func (i *instances) observe(instance string, sent time.Time) bool {
	if instance == "" {
		return false
	}
	now := time.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	known := slices.Contains(i.earlier, instance)
	switch {
	case instance == i.current, known && sent.Before(i.since):
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

// isSplit reports whether calls with rate limits are currently refused because two instances have answered alternately.
func (i *instances) isSplit() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return time.Now().Before(i.splitUntil)
}
