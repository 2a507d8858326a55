package streamable

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	// probeEvery is the minimum time between two checks whether a server still knows a session. probeTimeout is the
	// timeout for one check.
	probeEvery   = time.Minute
	probeTimeout = 10 * time.Second
)

// mayMeanLost reports whether some servers use the status for an unknown session. It returns false for status 404,
// which MCP 2025-11-25, Session Management, requires for an unknown session. This status is handled as [errForgotten],
// because only 404 means that the server has not read the request.
func mayMeanLost(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusGone:
		return true
	default:
		return false
	}
}

// probe checks whether a server still knows a session. It is called when the status of an answer might mean that the
// session is lost. why is the error of the request. If the session is lost, probe adds [upstream.ErrSessionLost] to
// why. Otherwise, it returns why unchanged.
//
// The check tries to open another session. If the server opens it, the server accepts requests from the gateway in
// general, so the old session counts as lost. probe then closes the new session. It never sends the request again,
// because the server may have executed it. The client must open a new session itself, because the state of its session
// is lost.
func (c *conn) probe(ctx context.Context, old *negotiated, memory *limits.Memory, why error) error {
	select {
	case c.reopening <- struct{}{}:
		defer func() { <-c.reopening }()
	case <-ctx.Done():
		return why
	}
	if now := c.state.Load(); now != old {
		return withSessionLost(now, why)
	}
	if !c.probed.IsZero() && time.Since(c.probed) < probeEvery {
		return why
	}
	c.probed = time.Now()
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	fresh, answer, err := c.handshake(ctx, memory)
	defer memory.Settle(0)
	if err != nil {
		return why
	}
	if answer.Message.Error.Present() {
		return why
	}
	if err := c.end(ctx, fresh); err != nil {
		c.server.log.DebugContext(ctx, "server did not end the session", "server", c.server.name, "error", err)
	}
	lost := &negotiated{closed: true, lost: true}
	if !c.state.CompareAndSwap(old, lost) { // fails if the session was closed or replaced during the check
		return why
	}
	c.server.log.InfoContext(ctx, "server no longer knows a session; the session ends", "server", c.server.name)
	return withSessionLost(lost, why)
}

// withSessionLost adds [upstream.ErrSessionLost] to the error of a request if the request's session is lost.
func withSessionLost(now *negotiated, why error) error {
	if now.lost {
		return fmt.Errorf("%w: %w", now.lossError(), why)
	}
	return why
}

// lossError returns the reason why the session is lost. The error wraps [upstream.ErrSessionLost].
func (state *negotiated) lossError() error {
	if state.why != nil {
		return state.why
	}
	return upstream.ErrSessionLost
}

// hasOneSession reports whether an answer to initialize means that the server accepts only one session in total.
// Servers with the official TypeScript SDK do this if all their clients share one transport. When the first session
// exists, such a server responds with status 400 and the error code for an invalid request.
func (s *Transport) hasOneSession(status int, answer *jsonrpc.Answer) bool {
	if status != http.StatusBadRequest || !upstream.HasCode(answer, mcp.CodeInvalidRequest) {
		return false
	}
	return s.opened.Load() || bytes.Contains(bytes.ToLower(answer.Error.Of(answer.Raw)), []byte("already initialized"))
}
