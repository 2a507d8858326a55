package streamable

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/accesstoken"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	// maxSession is the maximum accepted length of a server's session id, in bytes. Some servers' ids contain a token.
	maxSession = 4 << 10
	// endTimeout limits how long a server may take to end a session whose sign-in has ended.
	endTimeout = 5 * time.Second
)

// These are the reasons why a session cannot be used.
var (
	// errForgotten means that the server has responded to a request in a session with status 404. This means that the
	// server has ended the session and has not read the request (MCP 2025-11-25, Session Management).
	errForgotten = errors.New("the server no longer knows the session")
	// errDoubtful means that the server's response in a session contains no usable answer, and has a status that some
	// servers use for an unknown session.
	errDoubtful = errors.New("the server may no longer know the session")
	errSession  = errors.New("the server's session id is too long, or contains a character that MCP does not allow")
)

type conn struct {
	server     *Transport
	initialize upstream.Request
	// state is the result of the last handshake.
	state atomic.Pointer[negotiated]
	// reopening is a lock for opening a new session. If several requests find that their session is lost, only one of them
	// opens a new session. The lock is a channel, so that a request can stop waiting when its context is done.
	reopening chan struct{}
	// probed is the time at which the gateway last checked whether the server still knows the session. The lock
	// reopening guards it.
	probed time.Time
	// listened is true if the server has opened a stream for the session.
	listened atomic.Bool
	// unwatch stops watching whether the session's sign-in has ended.
	unwatch func() bool
}

// negotiated is the immutable result of a handshake.
type negotiated struct {
	// session is the server's Mcp-Session-Id, or empty if the server does not use sessions.
	session string
	// version is the negotiated protocol revision, or empty if the gateway does not know it.
	version string
	// closed is true if no more messages can be sent. lost is true if the server has lost the session. why is the reason
	// why the session's sign-in has ended, or nil if it has not ended.
	closed, lost bool
	why          error
	// signedIn is the sign-in with which the session was opened. Only its access tokens are used. It is nil if the
	// server does not require OAuth, and for revision 2026-07-28, which has no sessions.
	signedIn *accesstoken.Connection
	// opening is true while the session is not open yet.
	opening bool
	// cookies contains the session's cookies, or is nil if there is no session.
	cookies *cookies
}

// handshake sends initialize, or server/discover, and returns the result. memory is the memory budget for the answer.
func (c *conn) handshake(ctx context.Context, memory *limits.Memory) (*negotiated, upstream.Answer, error) {
	if c.initialize.Method() == mcp.MethodDiscover {
		return c.discover(ctx, memory)
	}
	initialize := c.initialize
	initialize.Room = memory
	signedIn, err := c.connection(ctx)
	if err != nil {
		return nil, upstream.Answer{}, err
	}
	opening := &negotiated{opening: true, cookies: c.server.newCookies(), signedIn: signedIn}
	resp, err := c.post(ctx, initialize, opening)
	if err != nil {
		return nil, upstream.Answer{}, err
	}
	defer closeBody(resp)
	message, err := c.answer(ctx, resp, initialize, opening, nil)
	if err != nil {
		return nil, upstream.Answer{Status: resp.StatusCode}, err
	}
	state := &negotiated{session: resp.Header.Get(headerSession), cookies: opening.cookies, signedIn: signedIn}
	if !isSession(state.session) {
		return nil, upstream.Answer{}, c.answerError(resp, errSession)
	}
	if version := versionOf(message); mcp.IsSupported(version) {
		state.version = version
	}
	return state, upstream.Answer{Message: message, Status: resp.StatusCode}, nil
}

// connection returns the sign-in for the next handshake. All handshakes of a connection use the same sign-in, because a
// session is never used with two accounts.
func (c *conn) connection(ctx context.Context) (*accesstoken.Connection, error) {
	if before := c.state.Load(); before != nil && before.signedIn != nil {
		return before.signedIn, nil
	}
	return c.server.connection(ctx)
}

// watch ends the session when its sign-in ends.
func (c *conn) watch() {
	c.unwatch = c.state.Load().signedIn.AfterEnd(c.lose)
}

// lose ends the session because its sign-in has ended. It also ends the session at the server, with the last access
// token.
func (c *conn) lose(why error) {
	defer func() { _ = recover() }() // net/http recovers only panics in the goroutines of requests
	old := c.state.Load()
	for ; !old.closed; old = c.state.Load() {
		if c.state.CompareAndSwap(old, &negotiated{closed: true, lost: true, why: why}) {
			break
		}
	}
	ctx, cancel := context.WithTimeout(c.server.all, endTimeout)
	defer cancel()
	if err := c.end(ctx, old); err != nil {
		c.server.log.DebugContext(ctx, "server did not end the session of a deleted connection", "server", c.server.name, "error", upstream.ForLog(err))
	}
}

// versionOf returns the protocol revision in an answer to initialize, without resolving escapes, or "" if the answer
// contains no revision.
func versionOf(a *jsonrpc.Answer) string {
	raw := a.ProtocolVersion.Of(a.Raw)
	if len(raw) < 2 || raw[0] != '"' {
		return ""
	}
	return string(raw[1 : len(raw)-1])
}

// isSession reports whether a session id has an accepted length and contains only visible ASCII characters, as required
// by MCP 2025-11-25, Session Management. An empty id means that there is no session.
func isSession(name string) bool {
	return len(name) <= maxSession && !strings.ContainsFunc(name, func(r rune) bool { return r < 0x21 || r > 0x7e })
}

// reopen replaces the lost session old with a new session. If another request has already replaced old, reopen returns
// the session that has replaced it.
func (c *conn) reopen(ctx context.Context, old *negotiated, memory *limits.Memory) (*negotiated, error) {
	select {
	case c.reopening <- struct{}{}:
		defer func() { <-c.reopening }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if now := c.state.Load(); now != old {
		return now, nil
	}
	fresh, answer, err := c.handshake(ctx, memory)
	switch {
	case err != nil:
		return nil, err
	case answer.Message.Error.Present():
		return nil, errors.New("the server refused to open a session")
	}
	if err := c.replaceSession(ctx, old, fresh); err != nil {
		return nil, errors.Join(err, c.end(ctx, fresh))
	}
	c.server.log.InfoContext(ctx, "server forgot its session; opened a new one", "server", c.server.name)
	return fresh, nil
}

// replaceSession sends notifications/initialized in the new session fresh, and then replaces the session of the
// connection with fresh.
func (c *conn) replaceSession(ctx context.Context, old, fresh *negotiated) error {
	if fresh.version != old.version { // the client expects the revision that it has negotiated
		return fmt.Errorf("the server now speaks %q instead of %q", fresh.version, old.version)
	}
	if err := c.notify(ctx, upstream.Initialized().Request("", nil), fresh); err != nil {
		return err
	}
	if !c.state.CompareAndSwap(old, fresh) {
		return upstream.ErrClosed // Close was called; no other function replaces the state while reopening is locked
	}
	return nil
}

// Notify implements upstream.Conn. It sends no cancellation to a server that does not use sessions, because such a
// server can't identify the cancelled request.
func (c *conn) Notify(ctx context.Context, req upstream.Request) error {
	state := c.state.Load()
	if req.Method() == mcp.MethodCancelled && state.session == "" && !state.closed {
		return nil
	}
	return c.notify(ctx, req, state)
}

func (c *conn) notify(ctx context.Context, req upstream.Request, state *negotiated) error {
	if state.modern() { // a server without sessions can't use notifications
		return nil
	}
	resp, err := c.post(ctx, req, state)
	if err != nil {
		return err
	}
	closeBody(resp)
	return nil
}

// Close implements upstream.Conn. It does not wait for requests in flight. They end when the server ends them or their
// timeouts expire.
func (c *conn) Close(ctx context.Context) error {
	c.unwatch()
	return c.end(ctx, c.state.Swap(&negotiated{closed: true}))
}

func (c *conn) end(ctx context.Context, state *negotiated) error {
	if state.session == "" {
		return nil
	}
	resp, err := c.server.sendLast(ctx, state.signedIn, c.server.remove, c.fields(nil, state, upstream.Request{}))
	if err != nil {
		return fmt.Errorf("end the session with %s: %w", c.server.name, err)
	}
	closeBody(resp)
	return nil
}
