package discovery

import (
	"context"
	"time"
)

const (
	// renewEvery is how often a server is asked, so that its news are known before what it
	// told counts as old.
	renewEvery = Fresh - 30*time.Second
	// retryFirst is how soon one is asked again that gave no answer. Each time more it is
	// twice as long, up to renewEvery.
	retryFirst = 15 * time.Second
	// restFirst is how long one is not asked again that says that its list has changed. Each
	// time more it is twice as long, up to renewEvery, until it is silent between two turns.
	restFirst = 10 * time.Second
	// lookEvery is how often is looked whether there is need.
	lookEvery = time.Second
)

// Keep has the server asked, again before what it told counts as old, and soon where it says
// that its list has changed, until ctx ends; with it those of others that were asked before.
// Each time it takes one of places first, so that of many few are asked at once, and while
// idle holds it asks nothing. What is asked when ctx ends goes on for its own time. One alone
// keeps a server.
func (s *Server) Keep(ctx context.Context, places chan struct{}, idle func() bool, others ...*Server) {
	due, retry, rest, announced := time.Now(), retryFirst, restFirst, false
	var last *Found // what it told last; nil where it gave no answer
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.deps.Server.ToolsChanged():
			if announced = true; last != nil { // one that gives no answer is asked in its time
				due = earlier(due, last.At.Add(rest))
			}
			continue
		case <-time.After(time.Until(due)):
		}
		if due = time.Now().Add(lookEvery); idle() {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case places <- struct{}{}:
		}
		age := renewEvery - lookEvery
		if announced {
			age = 0
		}
		var err error
		began, told := time.Now(), make(chan struct{})
		go func() {
			defer close(told)
			last, err = s.keepOnce(ctx, age, others)
		}()
		select {
		case <-ctx.Done():
			return
		case <-told:
		}
		<-places
		switch {
		case err != nil && s.failedBefore(began): // somebody else has asked just before
			due = time.Now().Add(longestPause)
			continue
		case err != nil:
			due, retry = time.Now().Add(retry), min(2*retry, renewEvery)
			continue
		case announced:
			rest = min(2*rest, renewEvery)
		default:
			rest = restFirst
		}
		if due, retry, announced = last.At.Add(renewEvery), retryFirst, false; time.Until(due) < lookEvery {
			due = time.Now().Add(lookEvery)
		}
	}
}

// failedBefore reports whether the server gave no answer before a time, and was not asked since.
func (s *Server) failedBefore(at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed.Before(at)
}

// keepOnce has the server asked, and those of others that were asked before.
func (s *Server) keepOnce(ctx context.Context, age time.Duration, others []*Server) (*Found, error) {
	found, err := s.Found(ctx, age)
	if err != nil { // nor would it answer in other words
		return nil, err
	}
	for _, other := range others {
		if other.Last() != nil {
			_, _ = other.Found(ctx, min(age, renewEvery/2)) // who needs it asks again, and says why it fails
		}
	}
	return found, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
