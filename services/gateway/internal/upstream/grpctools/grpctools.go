// Package grpctools provides the methods of a gRPC server as MCP tools. A method is a tool if its protobuf definition
// has the option (sluice.mcp.v1.tool). A tool call becomes a call of the method. The tool's arguments are parsed
// strictly according to the tool's schema, and become the request message. The response message becomes the tool
// result.
package grpctools

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/redact"
)

// maxAnswer is the maximum size, in bytes, of a method's response. The size of the tool result is larger, because JSON
// is longer and the result contains the JSON twice.
const maxAnswer = 4 << 20

// fresh is the age after which a server's tool list is requested again. stale is the age up to which the list is used
// if the server does not respond.
const fresh, stale = time.Minute, 10 * time.Minute

// Config describes a gRPC server.
type Config struct {
	// Name is the server's configured name.
	Name string
	// Contracts is the name of a protobuf package that is linked into this program and defines the server's tools. If
	// it is empty, the transport requests the tools by server reflection.
	Contracts protoreflect.FullName
	// Headers are sent as metadata with every call. References to secrets in the headers must already be resolved.
	Headers map[string]string
	// Secrets are values that an answer must not contain. Values of at least 8 bytes are redacted.
	Secrets []string
}

// Deps are the dependencies of a transport. Close may be nil.
type Deps struct {
	// Conn is the connection to the server.
	Conn grpc.ClientConnInterface
	// Close closes Conn. The transport calls Close once, when the transport itself is closed. If Close is nil, the caller
	// of New has to close Conn.
	Close func() error
	Log   *slog.Logger
}

// Transport connects to one gRPC server.
type Transport struct {
	cfg     Config
	conn    grpc.ClientConnInterface
	close   func() error
	headers metadata.MD
	clean   *redact.Redactor
	log     *slog.Logger

	// mu is held while the transport requests the server's tools.
	mu       sync.Mutex
	tools    *set
	listedAt time.Time
}

// New returns a transport to a server. New does not connect to the server.
func New(cfg Config, deps Deps) (*Transport, error) {
	if deps.Conn == nil || deps.Log == nil {
		return nil, errors.New("grpctools: a connection and a log are required")
	}
	t := &Transport{cfg: cfg, conn: deps.Conn, close: func() error { return nil }, headers: make(metadata.MD), clean: redact.New(nil, cfg.Secrets), log: deps.Log}
	if deps.Close != nil {
		t.close = sync.OnceValue(deps.Close)
	}
	for key, value := range cfg.Headers {
		if strings.HasPrefix(strings.ToLower(key), "grpc-") {
			return nil, fmt.Errorf("server %s: the header %q is reserved for gRPC", cfg.Name, key)
		}
		t.headers.Set(key, value)
	}
	if cfg.Contracts != "" {
		tools, err := linkedTools(cfg.Contracts)
		if err != nil {
			return nil, fmt.Errorf("server %s: %w", cfg.Name, err)
		}
		t.tools = tools
	}
	return t, nil
}

// Kind implements upstream.Transport.
func (*Transport) Kind() string { return "grpc" }

// ToolsChanged implements upstream.Transport. It returns nil, because it assumes that the protobuf definitions of a
// running server do not change.
func (*Transport) ToolsChanged() <-chan struct{} { return nil }

// Close implements upstream.Transport. It is idempotent.
func (t *Transport) Close() error { return t.close() }

// Open implements upstream.Transport. A gRPC server has no sessions, so the transport itself answers initialize after
// it has read the server's tools.
func (t *Transport) Open(ctx context.Context, _ principal.Key, initialize upstream.Request) (upstream.Conn, upstream.Answer, error) {
	if initialize.Kind() != jsonrpc.Request {
		return nil, upstream.Answer{}, fmt.Errorf("%w: a session is opened with a request", upstream.ErrNeverSent)
	}
	if _, err := t.currentTools(ctx); err != nil {
		return nil, upstream.Answer{}, err
	}
	result := `{"protocolVersion":"` + initialize.Message.Version + `","capabilities":{"tools":{}},"serverInfo":{"name":"` + t.cfg.Name + `","version":"grpc"}}`
	answer, err := t.answer(ctx, initialize, []byte(result))
	if err != nil {
		return nil, upstream.Answer{}, err
	}
	all, end := context.WithCancelCause(context.Background())
	return &conn{transport: t, all: all, end: end}, answer, nil
}

func (t *Transport) currentTools(ctx context.Context) (*set, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tools != nil && (t.cfg.Contracts != "" || time.Since(t.listedAt) < fresh) {
		return t.tools, nil
	}
	tools, err := toolsByReflection(t.callContext(ctx, ""), t.conn)
	switch {
	case err != nil && t.tools != nil && time.Since(t.listedAt) < stale:
		t.log.WarnContext(ctx, "a gRPC server does not report its tools; the last known ones are used", "server", t.cfg.Name, "error", err)
		return t.tools, nil
	case err != nil:
		return nil, fmt.Errorf("%w: %s: %w", upstream.ErrNeverSent, t.cfg.Name, err)
	}
	t.tools, t.listedAt = tools, time.Now()
	return tools, nil
}

// callContext returns a context with the metadata for a call.
func (t *Transport) callContext(ctx context.Context, traceParent string) context.Context {
	md := maps.Clone(t.headers)
	if traceParent != "" {
		md.Set("traceparent", traceParent)
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// answer returns the JSON-RPC response to req with the given result.
func (t *Transport) answer(ctx context.Context, req upstream.Request, result []byte) (upstream.Answer, error) {
	return t.response(ctx, req, `"result":`, result)
}

func (t *Transport) response(ctx context.Context, req upstream.Request, member string, value []byte) (upstream.Answer, error) {
	text := make([]byte, 0, len(value)+len(req.ID())+64)
	text = append(append(append(text, `{"jsonrpc":"2.0","id":`...), req.ID()...), ',')
	text = append(append(append(text, member...), value...), '}')
	if len(text) > upstream.MaxMessage {
		return upstream.Answer{}, fmt.Errorf("%w: %s: the answer has %d bytes as JSON, more than %d", upstream.ErrNoAnswer, t.cfg.Name, len(text), upstream.MaxMessage)
	}
	if err := req.Room.Grow(ctx, len(text)); err != nil {
		return upstream.Answer{}, fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, t.cfg.Name, err)
	}
	message, err := bodyreader.ReadMessage(ctx, text, t.clean, req.Room)
	if err != nil {
		return upstream.Answer{}, fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, t.cfg.Name, err)
	}
	req.Room.Settle(cap(text))
	return upstream.Answer{Message: message}, nil
}
