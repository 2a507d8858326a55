// Package relay lets a client of MCP that only starts programs reach the mesh: what it writes, a
// message a line, goes to an endpoint over Streamable HTTP, and what comes back it reads (MCP
// 2025-11-25, Transports). Messages are passed on as they are.
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
	// maxLine is the longest message that is taken from the client, in bytes: what the gateway
	// takes.
	maxLine = 4 << 20
	// closeTimeout bounds saying that the session is not used any more.
	closeTimeout = 2 * time.Second
)

// Config says where messages go. Every field is required.
type Config struct {
	// URL is the endpoint of a server behind the mesh, and Token the agent's.
	URL, Token string
	// Client makes the requests. [tokenhttp.New] makes one that keeps the token. It has no time-out of its own, because
	// calls may take long.
	Client *http.Client
	// Log is told what the client can't be.
	Log *slog.Logger
}

// Relay carries the messages of one client.
type Relay struct {
	cfg Config

	out sync.Mutex // held by who writes to
	to  io.Writer
	// lost is called once the client reads no more.
	lost context.CancelCauseFunc

	mu sync.Mutex
	// hello and ready are the client's own words by which a session is opened again; nil before
	// it has said them.
	hello, ready []byte
	now          session
	// listening ends the stream of the session at hand, and hearing waits for all of them.
	listening context.CancelFunc
	hearing   sync.WaitGroup
}

// session is what initialize gave; the zero value is none.
type session struct{ id, version string }

// message is what is looked at in one.
type message struct {
	ID     jsontext.Value `json:"id,omitzero"`
	Method string         `json:"method"`
	Result struct {
		Version string `json:"protocolVersion"`
	} `json:"result"`
	Error jsontext.Value `json:"error,omitzero"`
}

// isRequest reports whether it waits for an answer, and answers whether it is one to another.
func (m *message) isRequest() bool { return m.Method != "" && m.ID != nil }

func (m *message) answers(other *message) bool { return m.Method == "" && bytes.Equal(m.ID, other.ID) }

// Run carries messages until from ends, and the requests that it has taken have their answers; or
// until ctx ends or nobody reads any more, which is its error. Then it ends the session.
func Run(ctx context.Context, cfg Config, from io.Reader, to io.Writer) error {
	if cfg.URL == "" || cfg.Token == "" || cfg.Client == nil || cfg.Log == nil {
		return errors.New("relay: every setting is required")
	}
	ctx, lost := context.WithCancelCause(ctx)
	r := &Relay{cfg: cfg, to: to, lost: lost}
	defer r.hearing.Wait()
	defer lost(nil) // or one that is opened meanwhile is heard for ever
	lines := make(chan []byte)
	go func() { // reading can't be ended: it is left where ctx ends
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
				r.carry(ctx, line, &m) // what comes behind it may build on it
				continue
			}
			inFlight.Go(func() { r.carry(ctx, line, &m) })
		}
	}
}

// readLines sends the lines of a client, until there are no more.
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

// carry sends a message, and writes what comes back. A request gets one answer, whatever happens.
func (r *Relay) carry(ctx context.Context, line []byte, m *message) {
	in := r.begin(line, m)
	answered, err := r.post(ctx, line, m, in)
	if errors.Is(err, errForgotten) {
		if in, err = r.reopen(ctx, in); err == nil {
			answered, err = r.post(ctx, line, m, in)
		}
	}
	if err == nil && m.isRequest() && !answered {
		err = errors.New("the mesh ended its answer before it was whole")
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

// begin keeps the words by which a session is opened, and returns the one that a message goes in.
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

// failure is the error of JSON-RPC by which a client learns why there is no answer.
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

// write writes a message as one line. Its line breaks stand between tokens, where a space means
// the same.
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
		r.lost(fmt.Errorf("the client reads no more: %w", err))
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
