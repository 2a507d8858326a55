package identity

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sluice-mesh/sluice/services/internal/lru"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// A person may start startBurst sign-ins at servers at once, and then one sign-in in each startInterval.
	startInterval, startBurst = time.Minute, 20
	// maxStarters is the maximum number of people whose sign-ins are counted separately.
	maxStarters = 4096
)

// startLimits limits how many sign-ins at servers each person starts, because each sign-in sends requests to a server
// and can register an OAuth client. It is safe for concurrent use.
type startLimits struct {
	mu     sync.Mutex
	people *lru.Cache[principal.Key, *rate.Limiter]
}

func newStartLimits() *startLimits {
	return &startLimits{people: lru.New[principal.Key](maxStarters, maxStarters, func(*rate.Limiter) int { return 1 })}
}

// allow reports whether a person may start another sign-in now.
func (l *startLimits) allow(who principal.Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter, known := l.people.Get(who)
	if !known {
		limiter = rate.NewLimiter(rate.Every(startInterval), startBurst)
		l.people.Put(who, limiter)
	}
	return limiter.Allow()
}
