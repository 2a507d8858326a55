// Package relay connects an MCP client that supports only the stdio transport to the mesh. It reads the client's
// messages, one per line, and sends them to an endpoint over Streamable HTTP. It writes the responses back (MCP
// 2025-11-25, Transports). It does not change the messages.
package relay

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxLine is the maximum size of a message from the client, in bytes. It equals the gateway's limit.
	maxLine      = 4 << 20
	closeTimeout = 2 * time.Second
)

// Config configures a Relay. All fields except NewToken are required.
type Config struct {
	// Endpoint returns the URL of a server behind the mesh. If start is true and the mesh is not running, Endpoint may
	// start the mesh. Endpoint is called before each request, because the mesh may have another address after a restart.
	Endpoint func(ctx context.Context, start bool) (string, error)
	// Token is the agent's token.
	Token string
	// NewToken is the command that stores another token. If it is not empty, the error for a refused token contains it.
	NewToken string
	// Client sends the requests. Use [tokenhttp.New], which protects the token. The client must have no timeout,
	// because calls may take a long time.
	Client *http.Client
	// Log receives failures for which the client gets no response.
	Log *slog.Logger
}

// Relay forwards the messages of one client.
type Relay struct {
	cfg Config

	outMu  sync.Mutex // guards output
	output io.Writer
	// cancel makes Run return an error if the client stops reading.
	cancel context.CancelCauseFunc

	mu sync.Mutex
	// initialize and initialized are the client's initialize request and initialized notification, which the relay sends
	// again to reopen a session. They are nil until the client has sent them.
	initialize, initialized []byte
	current                 session // the zero value while no session is open
	// stopListening stops reading the GET stream of the current session. streams counts the goroutines that read GET
	// streams, so that Run can wait for them.
	stopListening context.CancelFunc
	streams       sync.WaitGroup
}

// A session is an MCP session at the gateway, with its protocol version. The zero value means that there is no session.
type session struct{ id, version string }

// A message contains those members of a JSON-RPC message that the relay uses.
type message struct {
	ID     jsontext.Value `json:"id,omitzero"`
	Method string         `json:"method"`
	Result struct {
		Version string `json:"protocolVersion"`
	} `json:"result"`
	Error jsontext.Value `json:"error,omitzero"`
}

// isRequest reports whether the message is a request, which needs a response.
func (m *message) isRequest() bool { return m.Method != "" && m.ID != nil }

func (m *message) isResponseTo(other *message) bool {
	return m.Method == "" && bytes.Equal(m.ID, other.ID)
}

// Run relays messages until the client's output ends and all requests have received their responses. It returns an
// error if ctx is done first, if the client stops reading, or if a line is too long. Before it returns, Run ends the
// session.
func Run(ctx context.Context, cfg Config, from io.Reader, to io.Writer) error {
	if cfg.Endpoint == nil || cfg.Token == "" || cfg.Client == nil || cfg.Log == nil {
		return errors.New("relay: every field of Config except for NewToken is required")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	r := &Relay{cfg: cfg, output: to, cancel: cancel}
	defer r.streams.Wait()
	defer cancel(nil) // ends all GET streams that are still open
	lines := make(chan []byte)
	go func() { // a read can't be interrupted, so this goroutine may outlive Run
		defer close(lines)
		if err := readLines(ctx, from, lines); err != nil {
			cancel(err)
		}
	}()
	var inFlight sync.WaitGroup
	defer r.endCurrent(context.WithoutCancel(ctx))
	defer inFlight.Wait()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case line, more := <-lines:
			if !more {
				inFlight.Wait()
				return context.Cause(ctx)
			}
			var m message
			if json.Unmarshal(line, &m) != nil || !m.isRequest() || m.Method == "initialize" {
				r.forward(ctx, line, &m) // later messages may depend on this message
				continue
			}
			inFlight.Go(func() { r.forward(ctx, line, &m) })
		}
	}
}

// readLines sends the client's lines to a channel until the client's output ends. It skips empty lines.
func readLines(ctx context.Context, from io.Reader, to chan<- []byte) error {
	in := bufio.NewScanner(from)
	in.Buffer(nil, maxLine)
	for in.Scan() {
		line := bytes.TrimSpace(in.Bytes())
		if len(line) == 0 {
			continue
		}
		select {
		case to <- bytes.Clone(line):
		case <-ctx.Done():
			return nil
		}
	}
	if errors.Is(in.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("the client wrote a message of more than %d bytes", maxLine)
	}
	return in.Err()
}

// forward sends a message, and writes the messages in the HTTP response to the client. A request gets exactly one
// response.
func (r *Relay) forward(ctx context.Context, line []byte, m *message) {
	in := r.currentSession(line, m)
	answered, err := r.post(ctx, line, m, in)
	if errors.Is(err, errSessionNotFound) {
		if in, err = r.reopen(ctx, in); err == nil {
			answered, err = r.post(ctx, line, m, in)
		}
	}
	if err == nil && m.isRequest() && !answered {
		err = errors.New("the mesh ended its answer before it was complete; the call may have run")
	}
	if err == nil || answered || ctx.Err() != nil {
		return
	}
	if !m.isRequest() {
		r.cfg.Log.WarnContext(ctx, "a message of the client was not delivered to the mesh", "mcp_method", m.Method, "error", err)
		return
	}
	rpcErr, own := errors.AsType[*rpcError](err)
	if !own {
		rpcErr = &rpcError{raw: internalError(err)}
	}
	r.write(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":%s}`, m.ID, rpcErr.raw))
}

// currentSession returns the session for a message. It stores an initialize request and an initialized notification, so
// that reopen can send them again. An initialize request has no session.
func (r *Relay) currentSession(line []byte, m *message) session {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch m.Method {
	case "initialize":
		r.initialize, r.current = line, session{}
	case "notifications/initialized":
		r.initialized = line
	}
	return r.current
}

// internalError returns the JSON-RPC error for a request whose response was not received.
func internalError(err error) jsontext.Value {
	raw, marshalErr := json.Marshal(struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{-32603, err.Error()})
	if marshalErr != nil { // Marshal fails if the error's message is not UTF-8
		return jsontext.Value(`{"code":-32603,"message":"the mesh gave no answer"}`)
	}
	return raw
}

// write writes a message to the client as one line. It replaces line breaks with spaces, which does not change the
// meaning because JSON allows line breaks only between tokens.
func (r *Relay) write(text []byte) {
	line := append(bytes.Clone(bytes.TrimSpace(text)), '\n')
	for i, c := range line[:len(line)-1] {
		if c == '\n' || c == '\r' {
			line[i] = ' '
		}
	}
	r.outMu.Lock()
	defer r.outMu.Unlock()
	if _, err := r.output.Write(line); err != nil {
		r.cancel(fmt.Errorf("the client no longer reads: %w", err))
	}
}

func (r *Relay) endCurrent(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	r.mu.Lock()
	now := r.current
	if r.stopListening != nil {
		r.stopListening()
	}
	r.mu.Unlock()
	r.deleteSession(ctx, now)
}
