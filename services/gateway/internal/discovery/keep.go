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
	// lookEvery is how often is looked whether there is need.
	lookEvery = time.Second
)

// Keep has the server asked, and again before what it told counts as old, until ctx ends;
// with it those of others that were asked before. Each time it takes one of places first, so
// that of many few are asked at once, and while idle holds it asks nothing. What is asked when
// ctx ends goes on for its own time.
func (s *Server) Keep(ctx context.Context, places chan struct{}, idle func() bool, others ...*Server) {
	pause, retry := time.Duration(0), retryFirst
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if pause = lookEvery; idle() {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case places <- struct{}{}:
		}
		found, err := s.Found(ctx, renewEvery-lookEvery)
		for _, other := range others {
			if other.Last() != nil {
				_, _ = other.Found(ctx, renewEvery/2) // who needs it asks again, and says why it fails
			}
		}
		<-places
		if err != nil {
			pause, retry = retry, min(2*retry, renewEvery)
			continue
		}
		pause, retry = max(lookEvery, time.Until(found.At.Add(renewEvery))), retryFirst
	}
}
