// Package relay connects a client of MCP that only starts programs to the mesh. It sends the client's messages, one on
// each line, to an endpoint over Streamable HTTP, and writes the answers (MCP 2025-11-25, Transports). Messages are
// passed on unchanged.
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
	// maxLine is the longest message that is accepted from the client, in bytes; it is the gateway's limit.
	maxLine = 4 << 20
	// closeTimeout bounds the request that ends the session.
	closeTimeout = 2 * time.Second
)

// Config says where messages go. Every field is required.
type Config struct {
	// URL is the endpoint of a server behind the mesh, and Token the agent's token.
	URL, Token string
	// Client makes the requests. [tokenhttp.New] returns one that protects the token. It has no time limit of its own,
	// because calls may take long.
	Client *http.Client
	// Log receives what the client can't be notified of.
	Log *slog.Logger
}

// Relay carries the messages of one client.
type Relay struct {
	cfg Config

	out sync.Mutex // guards to
	to  io.Writer
	// lost is called when the client no longer reads.
	lost context.CancelCauseFunc

	mu sync.Mutex
	// hello and ready are the client's messages that open a session again; nil before the client has sent them.
	hello, ready []byte
	now          session
	// listening ends the stream of the current session. hearing waits for all streams.
	listening context.CancelFunc
	hearing   sync.WaitGroup
}

// session is the session that initialize opened; the zero value means no session.
type session struct{ id, version string }

// message has the parts of a message that the relay uses.
type message struct {
	ID     jsontext.Value `json:"id,omitzero"`
	Method string         `json:"method"`
	Result struct {
		Version string `json:"protocolVersion"`
	} `json:"result"`
	Error jsontext.Value `json:"error,omitzero"`
}

// isRequest reports whether the message waits for an answer.
func (m *message) isRequest() bool { return m.Method != "" && m.ID != nil }

func (m *message) answers(other *message) bool { return m.Method == "" && bytes.Equal(m.ID, other.ID) }

// Run carries messages until from ends and all accepted requests have their answers, or until ctx ends or the client no
// longer reads, which is the error. Then it ends the session.
func Run(ctx context.Context, cfg Config, from io.Reader, to io.Writer) error {
	if cfg.URL == "" || cfg.Token == "" || cfg.Client == nil || cfg.Log == nil {
		return errors.New("relay: every setting is required")
	}
	ctx, lost := context.WithCancelCause(ctx)
	r := &Relay{cfg: cfg, to: to, lost: lost}
	defer r.hearing.Wait()
	defer lost(nil) // ends streams that are opened in the meantime
	lines := make(chan []byte)
	go func() { // a read can't be interrupted: the goroutine stays if ctx ends
		defer close(lines)
		if err := readLines(ctx, from, lines); err != nil {
			lost(err)
		}
	}()
	var inFlight sync.WaitGroup
	defer r.end(context.WithoutCancel(ctx))
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
				r.carry(ctx, line, &m) // later messages may depend on it
				continue
			}
			inFlight.Go(func() { r.carry(ctx, line, &m) })
		}
	}
}

// readLines sends the lines of a client until the client's output ends.
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

// carry sends a message, and writes the answers. A request gets exactly one answer.
func (r *Relay) carry(ctx context.Context, line []byte, m *message) {
	in := r.begin(line, m)
	answered, err := r.post(ctx, line, m, in)
	if errors.Is(err, errForgotten) {
		if in, err = r.reopen(ctx, in); err == nil {
			answered, err = r.post(ctx, line, m, in)
		}
	}
	if err == nil && m.isRequest() && !answered {
		err = errors.New("the mesh ended its answer before it was complete")
	}
	if err == nil || answered || ctx.Err() != nil {
		return
	}
	if !m.isRequest() {
		r.cfg.Log.WarnContext(ctx, "message not delivered", "mcp_method", m.Method, "error", err)
		return
	}
	said, own := errors.AsType[*rpcError](err)
	if !own {
		said = &rpcError{raw: failure(err)}
	}
	r.write(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":%s}`, m.ID, said.raw))
}

// begin stores the messages that open a session, and returns the session that a message belongs to.
func (r *Relay) begin(line []byte, m *message) session {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch m.Method {
	case "initialize":
		r.hello, r.now = line, session{}
	case "notifications/initialized":
		r.ready = line
	}
	return r.now
}

// failure returns the JSON-RPC error that tells the client why there is no answer.
func failure(err error) jsontext.Value {
	raw, marshalErr := json.Marshal(struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{-32603, err.Error()})
	if marshalErr != nil { // an error's text need not be UTF-8
		return jsontext.Value(`{"code":-32603,"message":"the mesh gave no answer"}`)
	}
	return raw
}

// write writes a message as one line. Line breaks are between tokens, where a space means the same.
func (r *Relay) write(text []byte) {
	line := append(bytes.Clone(bytes.TrimSpace(text)), '\n')
	for i, c := range line[:len(line)-1] {
		if c == '\n' || c == '\r' {
			line[i] = ' '
		}
	}
	r.out.Lock()
	defer r.out.Unlock()
	if _, err := r.to.Write(line); err != nil {
		r.lost(fmt.Errorf("the client no longer reads: %w", err))
	}
}

// end ends the session.
func (r *Relay) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	r.mu.Lock()
	now := r.now
	if r.listening != nil {
		r.listening()
	}
	r.mu.Unlock()
	r.leave(ctx, now)
}
