package identity

import (
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sluice-mesh/sluice/services/internal/lru"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// A person may start startBurst sign-ins at servers at once, and then one sign-in in each startInterval.
	startInterval, startBurst = time.Minute, 20
	// maxExchanges is the maximum number of codes that a replica exchanges for one sign-in.
	maxExchanges = 3
	// maxStarters is the maximum number of people whose sign-ins are counted separately.
	maxStarters = 4096
)

// startLimits limits the sign-ins at servers that a person starts, because each sends requests to a server and can
// register an OAuth client. It also limits the codes that are exchanged, because an authorization server can block the
// mesh after many invalid codes. It is safe for concurrent use.
type startLimits struct {
	mu     sync.Mutex
	people *lru.Cache[principal.Key, *starter]
}

// starter counts the sign-ins of a person.
type starter struct {
	limiter *rate.Limiter
	// exchanges contains the sign-ins for which a code was exchanged, by [attempt.ID].
	exchanges map[string]exchanges
}

// exchanges counts the codes that were exchanged for a sign-in.
type exchanges struct {
	number  int
	started time.Time
}

func newStartLimits() *startLimits {
	return &startLimits{people: lru.New[principal.Key](maxStarters, maxStarters, func(*starter) int { return 1 })}
}

// allow reports whether a person may start another sign-in now.
func (l *startLimits) allow(who principal.Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of(who).limiter.Allow()
}

// beginExchange counts a code that a person wants to exchange for a sign-in. The first code of a sign-in is free, because
// the start of the sign-in was counted. Each further code counts as much as the start of a sign-in. The error is
// [errAttemptEnded] if the sign-in has ended, and [errManySignIns] if the person must wait.
func (l *startLimits) beginExchange(who principal.Key, begun *attempt) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.of(who)
	maps.DeleteFunc(s.exchanges, func(_ string, e exchanges) bool { return time.Since(e.started) > attemptLife })
	of := s.exchanges[begun.ID]
	switch {
	case begun.ID == "" || of.number >= maxExchanges:
		return errAttemptEnded
	case of.number > 0 && !s.limiter.Allow():
		return errManySignIns
	}
	s.exchanges[begun.ID] = exchanges{of.number + 1, begun.Started}
	return nil
}

// end ends a sign-in that has succeeded. No other code is exchanged for it.
func (l *startLimits) end(who principal.Key, begun *attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(who).exchanges[begun.ID] = exchanges{maxExchanges, begun.Started}
}

func (l *startLimits) of(who principal.Key) *starter {
	s, known := l.people.Get(who)
	if !known {
		s = &starter{limiter: rate.NewLimiter(rate.Every(startInterval), startBurst), exchanges: make(map[string]exchanges)}
		l.people.Put(who, s)
	}
	return s
}
