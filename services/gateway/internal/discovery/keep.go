package discovery

import (
	"bytes"
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
	// newsFirst is how soon one is asked again that says that its list has changed. Each
	// time more that it has not it is twice as long, up to renewEvery.
	newsFirst = 10 * time.Second
	// lookEvery is how often is looked whether there is need.
	lookEvery = time.Second
)

// Keep has the server asked, again before what it told counts as old, and soon where it says
// that its list has changed, until ctx ends; with it those of others that were asked before.
// Each time it takes one of places first, so that of many few are asked at once, and while
// idle holds it asks nothing. What is asked when ctx ends goes on for its own time. One alone
// keeps a server.
func (s *Server) Keep(ctx context.Context, places chan struct{}, idle func() bool, others ...*Server) {
	pause, retry, settle, news := time.Duration(0), retryFirst, newsFirst, false
	for {
		before := s.Last()
		select {
		case <-ctx.Done():
			return
		case <-s.deps.Server.ToolsChanged():
			if news = true; before != nil {
				pause = max(0, time.Until(before.At.Add(settle)))
			}
			continue
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
		age := renewEvery - lookEvery
		if news {
			age = 0
		}
		found, err := s.Found(ctx, age)
		for _, other := range others {
			if other.Last() != nil {
				_, _ = other.Found(ctx, min(age, renewEvery/2)) // who needs it asks again, and says why it fails
			}
		}
		<-places
		if err != nil {
			pause, retry = retry, min(2*retry, renewEvery)
			continue
		}
		switch {
		case before != nil && !bytes.Equal(found.List.Raw, before.List.Raw):
			settle = newsFirst
		case news:
			settle = min(2*settle, renewEvery)
		}
		pause, retry, news = max(lookEvery, time.Until(found.At.Add(renewEvery))), retryFirst, false
	}
}
