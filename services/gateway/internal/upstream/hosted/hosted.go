// Package hosted represents an MCP client's own tools, such as its shell, as a server. Before each call to such a tool,
// a hook in the client sends the call to the gateway. If the policy allows the call, the gateway forwards the call to
// this server. Its response tells the client to execute the call.
package hosted

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/hosttools"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/redact"
)

// These are errors of JSON-RPC 2.0, section 5.1.
const (
	noMethod = `{"code":-32601,"message":"a client has only tools"}`
	noTool   = `{"code":-32602,"message":"the client has no such tool"}`
)

// allowed is the result for an allowed call. The client executes the call after it has received this result.
const allowed = `{"content":[{"type":"text","text":"The client may execute this call."}]}`

// Transport represents the tools of one client as a server.
type Transport struct {
	name  string
	list  []byte
	names map[string]bool
	clean *redact.Redactor
}

// New returns the transport for a client that package hosttools knows.
func New(client string) (*Transport, error) {
	tools, err := hosttools.Tools(client)
	if err != nil {
		return nil, err
	}
	t := &Transport{name: hosttools.ServerName(client), names: make(map[string]bool, len(tools)), clean: redact.New(nil, nil)}
	t.list = []byte(`{"tools":[`)
	for i, tool := range tools {
		if i > 0 {
			t.list = append(t.list, ',')
		}
		t.list = append(t.list, tool.Definition...)
		t.names[tool.Name] = true
	}
	t.list = append(t.list, "]}"...)
	return t, nil
}

// Kind implements upstream.Transport.
func (*Transport) Kind() string { return upstream.KindHost }

// ToolsChanged implements upstream.Transport. It returns nil, because the tool definitions are part of this program.
func (*Transport) ToolsChanged() <-chan struct{} { return nil }

// Close implements upstream.Transport.
func (*Transport) Close() error { return nil }

// Open implements upstream.Transport.
func (t *Transport) Open(ctx context.Context, _ principal.Key, hello upstream.Request) (upstream.Conn, upstream.Answer, error) {
	if hello.Kind() != jsonrpc.Request {
		return nil, upstream.Answer{}, fmt.Errorf("%w: a session is opened with a request", upstream.ErrNeverSent)
	}
	result := `{"protocolVersion":"` + hello.Message.Version + `","capabilities":{"tools":{}},"serverInfo":{"name":"` + t.name + `","version":"hook"}}`
	answer, err := t.answer(ctx, hello, `"result":`, []byte(result))
	if err != nil {
		return nil, upstream.Answer{}, err
	}
	return conn{t}, answer, nil
}

// answer returns the JSON-RPC response to req. member is `"result":` or `"error":`, and value is the JSON value of this
// member.
func (t *Transport) answer(ctx context.Context, req upstream.Request, member string, value []byte) (upstream.Answer, error) {
	text := make([]byte, 0, len(value)+len(req.ID())+64)
	text = append(append(append(text, `{"jsonrpc":"2.0","id":`...), req.ID()...), ',')
	text = append(append(append(text, member...), value...), '}')
	if err := req.Room.Grow(ctx, len(text)); err != nil {
		return upstream.Answer{}, fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, t.name, err)
	}
	message, err := bodyreader.ReadMessage(ctx, text, t.clean, req.Room)
	if err != nil {
		return upstream.Answer{}, fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, t.name, err)
	}
	req.Room.Settle(cap(text))
	return upstream.Answer{Message: message}, nil
}

type conn struct{ transport *Transport }

// Request implements upstream.Conn.
func (c conn) Request(ctx context.Context, req upstream.Request, _ func([]byte)) (upstream.Answer, error) {
	if err := ctx.Err(); err != nil {
		return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNeverSent, errors.Join(err, context.Cause(ctx)))
	}
	switch req.Method() {
	case mcp.MethodToolsCall:
		if !c.transport.names[req.Message.Name] {
			return c.transport.answer(ctx, req, `"error":`, []byte(noTool))
		}
		if err := req.MayBegin(); err != nil {
			return upstream.Answer{}, err
		}
		return c.transport.answer(ctx, req, `"result":`, []byte(allowed))
	case mcp.MethodToolsList:
		return c.transport.answer(ctx, req, `"result":`, c.transport.list)
	case mcp.MethodPing:
		return c.transport.answer(ctx, req, `"result":`, []byte(`{}`))
	}
	return c.transport.answer(ctx, req, `"error":`, []byte(noMethod))
}

// Notify implements upstream.Conn. It does nothing.
func (conn) Notify(context.Context, upstream.Request) error { return nil }

// Listen implements upstream.Conn.
func (conn) Listen(context.Context, upstream.Listener) error { return upstream.ErrNoStream }

// Close implements upstream.Conn.
func (conn) Close(context.Context) error { return nil }
