// Package grpctools makes tools of the methods of a gRPC server: of each whose contract
// carries the option (sluice.mcp.v1.tool). A call of the tool is a call of the method, its
// arguments are read into the method's request as the tool's schema says and in no other
// way, and what the method answers is the result.
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

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/intake"
	"github.com/sluice-mesh/sluice/services/internal/scrub"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// maxAnswer is the largest message that a method may answer with, in bytes. Its JSON is
// there twice, and longer.
const maxAnswer = 4 << 20

// fresh is how long what a server said of its tools is believed, and stale how long where it
// says nothing any more.
const fresh, stale = time.Minute, 10 * time.Minute

// Config says what a server is.
type Config struct {
	// Name is its configured name.
	Name string
	// Contracts are a package that this program knows, all of whose tools the server has;
	// empty where the server is to be asked, by server reflection.
	Contracts protoreflect.FullName
	// Headers are sent with every call as metadata, references resolved.
	Headers map[string]string
	// Secrets are values that no answer is to hold; those of at least 8 bytes are blotted
	// out of it.
	Secrets []string
}

// Deps is what a transport needs.
type Deps struct {
	// Conn is the connection to the server.
	Conn grpc.ClientConnInterface
	// Close ends Conn. The transport calls it once, when it is closed itself. Nil if Conn belongs to the caller, who
	// shares it with others and ends it.
	Close func() error
	Log   *slog.Logger
}

// Transport reaches one server.
type Transport struct {
	cfg     Config
	conn    grpc.ClientConnInterface
	close   func() error
	headers metadata.MD
	clean   *scrub.Scrubber
	log     *slog.Logger

	// mu is held while the server is asked for its tools.
	mu    sync.Mutex
	tools *set
	asked time.Time
}

// New returns a transport to a server. It connects when a session is opened.
func New(cfg Config, deps Deps) (*Transport, error) {
	if deps.Conn == nil || deps.Log == nil {
		return nil, errors.New("grpctools: a connection and a log are required")
	}
	t := &Transport{cfg: cfg, conn: deps.Conn, close: func() error { return nil }, headers: make(metadata.MD), clean: scrub.New(nil, cfg.Secrets), log: deps.Log}
	if deps.Close != nil {
		t.close = sync.OnceValue(deps.Close)
	}
	for key, value := range cfg.Headers {
		if strings.HasPrefix(strings.ToLower(key), "grpc-") {
			return nil, fmt.Errorf("server %s: the header %q is gRPC's own", cfg.Name, key)
		}
		t.headers.Set(key, value)
	}
	if cfg.Contracts != "" {
		tools, err := registered(cfg.Contracts)
		if err != nil {
			return nil, fmt.Errorf("server %s: %w", cfg.Name, err)
		}
		t.tools = tools
	}
	return t, nil
}

// Kind implements upstream.Transport.
func (*Transport) Kind() string { return "grpc" }

// ToolsChanged implements upstream.Transport: a server's contracts don't change while it runs.
func (*Transport) ToolsChanged() <-chan struct{} { return nil }

// Close implements upstream.Transport. It is idempotent.
func (t *Transport) Close() error { return t.close() }

// Open implements upstream.Transport. A gRPC server has no sessions: initialize is answered
// here, once the server has said what tools it has.
func (t *Transport) Open(ctx context.Context, _ principal.Key, initialize upstream.Request) (upstream.Conn, upstream.Answer, error) {
	if initialize.Kind() != gate.Request {
		return nil, upstream.Answer{}, fmt.Errorf("%w: a session is opened with a request", upstream.ErrNeverSent)
	}
	if _, err := t.set(ctx); err != nil {
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

// set is what tools the server has.
func (t *Transport) set(ctx context.Context) (*set, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tools != nil && (t.cfg.Contracts != "" || time.Since(t.asked) < fresh) {
		return t.tools, nil
	}
	tools, err := reflected(t.outgoing(ctx, ""), t.conn)
	switch {
	case err != nil && t.tools != nil && time.Since(t.asked) < stale:
		t.log.WarnContext(ctx, "a gRPC server does not say what tools it has; those that it had are believed", "server", t.cfg.Name, "error", err)
		return t.tools, nil
	case err != nil:
		return nil, fmt.Errorf("%w: %s: %w", upstream.ErrNeverSent, t.cfg.Name, err)
	}
	t.tools, t.asked = tools, time.Now()
	return tools, nil
}

// outgoing is a call's context with its metadata.
func (t *Transport) outgoing(ctx context.Context, traceParent string) context.Context {
	md := maps.Clone(t.headers)
	if traceParent != "" {
		md.Set("traceparent", traceParent)
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// answer is the response to a request with this result.
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
	message, err := intake.Message(ctx, text, t.clean, req.Room)
	if err != nil {
		return upstream.Answer{}, fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, t.cfg.Name, err)
	}
	req.Room.Keep(cap(text))
	return upstream.Answer{Message: message}, nil
}
