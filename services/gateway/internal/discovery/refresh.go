package discovery

import (
	"context"
	"time"
)

const (
	// renewEvery is the interval between regular queries. It is shorter than Fresh, so that the last result can always
	// be used.
	renewEvery = Fresh - 30*time.Second
	// retryFirst is the pause after a server's first failed query. With each further failure, the pause doubles, up to
	// renewEvery.
	retryFirst = 15 * time.Second
	// restFirst is how long KeepFresh waits before it queries a server that has reported a change to its list. With
	// each further report, this time doubles, up to renewEvery. It is reset when the server reports no change between
	// two queries.
	restFirst = 10 * time.Second
	// lookEvery is how often KeepFresh checks whether the server must be queried.
	lookEvery = time.Second
)

// KeepFresh queries the server until ctx is done. It queries the server before the last result becomes too old, and
// shortly after the server reports that its list has changed. The caller can pass further Servers for the same MCP
// server; KeepFresh also queries those that have been queried before.
//
// KeepFresh sends a value to the channel before each query and receives a value from it after the query, so that the
// channel's capacity limits how many queries run at the same time. While idle() returns true, KeepFresh makes no
// queries. A query that is running when ctx is done continues until its own timeout. Only one goroutine may call
// KeepFresh for a server.
func (s *Server) KeepFresh(ctx context.Context, places chan struct{}, idle func() bool, others ...*Server) {
	due, retry, rest, announced := time.Now(), retryFirst, restFirst, false
	var last *Result // the last result; nil if the last attempt failed
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.deps.Server.ToolsChanged():
			if announced = true; last != nil { // a server that failed is queried at its regular time
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
			last, err = s.refreshOnce(ctx, age, others)
		}()
		select {
		case <-ctx.Done():
			return
		case <-told:
		}
		<-places
		switch {
		case err != nil && s.failedBefore(began): // another caller has just queried the server
			due = time.Now().Add(maxPause)
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

// failedBefore reports whether the last failure of a query was before the given time.
func (s *Server) failedBefore(at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed.Before(at)
}

// refreshOnce queries the server, and those of the other Servers that have been queried before.
func (s *Server) refreshOnce(ctx context.Context, age time.Duration, others []*Server) (*Result, error) {
	found, err := s.Get(ctx, age)
	if err != nil { // queries of the other Servers would fail, too
		return nil, err
	}
	for _, other := range others {
		if other.Last() != nil {
			_, _ = other.Get(ctx, min(age, renewEvery/2)) // callers that need the result get the error
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
