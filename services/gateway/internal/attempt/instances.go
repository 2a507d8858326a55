package attempt

import (
	"slices"
	"sync"
	"time"
)

const (
	// splitDuration is how long calls with rate limits are refused after two instances of the ratelimit service have
	// answered alternately.
	splitDuration = time.Minute
	// maxInstances is the maximum number of instances that are remembered. Each restart of the ratelimit service adds
	// one.
	maxInstances = 16
)

// instances detects whether more than one instance of the ratelimit service answers. Each instance counts separately,
// so two instances would double every limit. An answer from a new instance is taken to mean that the service was
// restarted. If an earlier instance answers again, there are two instances. In the zero value of this type, no instance
// has answered yet. The type is safe for concurrent use.
type instances struct {
	mu      sync.Mutex
	current string
	// since is the time of the first answer from the current instance.
	since      time.Time
	earlier    []string
	splitUntil time.Time
}

// observe records that an instance has answered a request. The parameter asked is the time at which the request was
// sent. observe reports whether two instances have answered alternately within splitDuration. It ignores late answers
// from a replaced instance. An empty instance means that the ratelimit service has an earlier version, which does not
// identify its instances.
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

// isSplit reports whether calls with rate limits are currently refused because two instances have answered alternately.
func (i *instances) isSplit() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return time.Now().Before(i.splitUntil)
}
