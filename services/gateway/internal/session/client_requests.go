package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

const (
	// maxWaiting limits how many of a server's requests may wait for responses from the session's client at the same
	// time. maxPerMinute limits how many requests a server may send in a minute, including refused ones.
	maxWaiting   = 16
	maxPerMinute = 600
)

// [ClientRequests.AddFromServer] returns these errors. Compare them with errors.Is.
var (
	// ErrRequestID means that a request's id is neither a string nor an integer.
	ErrRequestID = errors.New("the id is neither a string nor an integer")
	// ErrDuplicateRequest means that a request with the same id already waits for a response.
	ErrDuplicateRequest = errors.New("a request with the same id already waits for the client's response")
	// ErrTooManyRequests means that too many requests already wait for responses.
	ErrTooManyRequests = errors.New("too many requests already wait for responses of this client")
	// ErrRequestFlood means that the server has sent too many requests in this minute. The gateway must not answer a
	// request that fails with this error.
	ErrRequestFlood = errors.New("the server has sent too many requests in this minute")
	// ErrRequestsClosed means that the session is closed.
	ErrRequestsClosed = errors.New("the session is closed")
)

// ClientRequests contains the requests from the server or the gateway that wait for a response from a session's client.
// The zero value is empty. It is safe for concurrent use.
type ClientRequests struct {
	mu   sync.Mutex
	byID map[string]*ClientRequest
	// waiting is how many requests from the server wait for a response. received is how many requests the server has sent
	// in the minute that began at since.
	waiting, received int
	since             time.Time
	closed            bool
}

// ClientRequest is a request that waits for a response. The sender of the request must close it.
type ClientRequest struct {
	of          *ClientRequests
	fromGateway bool // whether the gateway has sent the request
	key, token  string
	answer      chan *jsonrpc.Message
	void        chan struct{}
	closed      chan struct{}
}

// AddFromServer adds a request from the server with the given raw id. It returns [ErrRequestID], [ErrDuplicateRequest],
// [ErrTooManyRequests], [ErrRequestFlood] or [ErrRequestsClosed].
func (a *ClientRequests) AddFromServer(id []byte) (*ClientRequest, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := time.Now(); now.Sub(a.since) >= time.Minute {
		a.since, a.received = now, 0
	}
	if a.received++; a.received > maxPerMinute {
		return nil, ErrRequestFlood
	}
	if a.waiting >= maxWaiting {
		return nil, ErrTooManyRequests
	}
	return a.add(&ClientRequest{key: jsonrpc.IDKey(id)})
}

// AddOwn adds a request from the gateway with the given raw id. The limits for the server's requests do not apply.
// AddOwn returns [ErrRequestID], [ErrDuplicateRequest] or [ErrRequestsClosed].
func (a *ClientRequests) AddOwn(id []byte) (*ClientRequest, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.add(&ClientRequest{key: jsonrpc.IDKey(id), fromGateway: true})
}

// add adds a request. The caller must hold the lock.
func (a *ClientRequests) add(q *ClientRequest) (*ClientRequest, error) {
	switch {
	case a.closed:
		return nil, ErrRequestsClosed
	case q.key == "":
		return nil, ErrRequestID
	case a.byID[q.key] != nil:
		return nil, ErrDuplicateRequest
	}
	if a.byID == nil {
		a.byID = make(map[string]*ClientRequest)
	}
	q.of, q.answer, q.void, q.closed = a, make(chan *jsonrpc.Message, 1), make(chan struct{}), make(chan struct{})
	a.byID[q.key] = q
	if !q.fromGateway {
		a.waiting++
	}
	return q, nil
}

// SetProgressToken sets the raw progress token of the request. token is nil if the request has none.
func (q *ClientRequest) SetProgressToken(token []byte) {
	q.of.mu.Lock()
	defer q.of.mu.Unlock()
	q.token = jsonrpc.IDKey(token)
}

// Response returns the channel on which the response arrives. The caller must not use the response after calling
// [ClientRequest.Close].
func (q *ClientRequest) Response() <-chan *jsonrpc.Message { return q.answer }

// Cancelled returns a channel that is closed when the sender cancels the request or the session is closed.
func (q *ClientRequest) Cancelled() <-chan struct{} { return q.void }

// Close removes the request. After that, the caller must not use the response.
func (q *ClientRequest) Close() {
	q.of.mu.Lock()
	defer q.of.mu.Unlock()
	delete(q.of.byID, q.key)
	if !q.fromGateway {
		q.of.waiting--
	}
	close(q.closed)
}

// Deliver passes a client's response to the goroutine that has sent the request. It returns when that goroutine has
// closed the request or when ctx is cancelled. Deliver drops a response if no request waits for it, or if the request
// already has a response.
func (a *ClientRequests) Deliver(ctx context.Context, m *jsonrpc.Message) {
	a.mu.Lock()
	q := a.byID[jsonrpc.IDKey(m.ID.Of(m.Raw))]
	a.mu.Unlock()
	if q == nil {
		return
	}
	select {
	case q.answer <- m:
	default:
		return
	}
	select {
	case <-q.closed:
	case <-ctx.Done():
	}
}

// IsWaiting reports whether a request with the given raw id waits for a response.
func (a *ClientRequests) IsWaiting(id []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byID[jsonrpc.IDKey(id)] != nil
}

// CancelRequest cancels the server's request with the given raw id.
func (a *ClientRequests) CancelRequest(id []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q := a.byID[jsonrpc.IDKey(id)]; q != nil && !q.fromGateway {
		q.cancel()
	}
}

// Close cancels all requests. After that, AddFromServer and AddOwn return [ErrRequestsClosed].
func (a *ClientRequests) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, q := range a.byID {
		q.cancel()
	}
}

// cancel cancels a request. The caller must hold the lock.
func (q *ClientRequest) cancel() {
	select {
	case <-q.void:
	default:
		close(q.void)
	}
}

// WantsProgress reports whether a waiting request has the given raw progress token.
func (a *ClientRequests) WantsProgress(token []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := jsonrpc.IDKey(token)
	for _, q := range a.byID {
		if key != "" && q.token == key {
			return true
		}
	}
	return false
}
