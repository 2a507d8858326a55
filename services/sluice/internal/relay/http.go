package relay

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/tmaxmax/go-sse"

	"github.com/sluice-mesh/sluice/services/sluice/internal/tokenhttp"
)

const (
	// maxAnswer is how much is read of one message, in bytes: what the gateway takes from a
	// server, and room for the rest of a message.
	maxAnswer = 17 << 20
	// leastWait and mostWait are how long to wait before a stream that has ended is opened
	// again: twice as long each time, until something comes on it.
	leastWait = time.Second
	mostWait  = 30 * time.Second
)

// errForgotten means that the gateway does not know the session: it was idle for too long, or the
// gateway has restarted.
var errForgotten = errors.New("the session has ended")

// rpcError is an error that the gateway answered with, as raw JSON.
type rpcError struct{ raw jsontext.Value }

func (e *rpcError) Error() string { return string(e.raw) }

// send makes one request of HTTP in a session. The last event is where a stream goes on; empty for
// none.
func (r *Relay) send(ctx context.Context, method string, body []byte, in session, last string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, r.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", r.cfg.URL, err)
	}
	req.Header.Set("Authorization", "Bearer "+r.cfg.Token)
	req.Header.Set("Accept", "text/event-stream")
	if method == http.MethodPost {
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range map[string]string{"Mcp-Session-Id": in.id, "Mcp-Protocol-Version": in.version, "Last-Event-Id": last} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	resp, err := r.cfg.Client.Do(req)
	if refused, ok := errors.AsType[*tokenhttp.RefusedError](err); ok {
		return nil, refused
	}
	if err != nil {
		return nil, fmt.Errorf("the mesh does not answer: is it up? (%w)", err)
	}
	return resp, nil
}

// drop lets go of a response, whatever is left of it.
func drop(resp *http.Response) { _ = resp.Body.Close() }

// post sends a message in a session, and writes what is answered. It keeps what opens one, and
// reports whether the answer to the message was among what was written.
func (r *Relay) post(ctx context.Context, line []byte, m *message, in session) (answered bool, err error) {
	resp, err := r.send(ctx, http.MethodPost, line, in, "")
	if err != nil {
		return false, err
	}
	defer drop(resp)
	err = r.read(resp, func(text []byte) {
		var said message
		if json.Unmarshal(text, &said) == nil && said.answers(m) {
			answered = true
			if m.Method == "initialize" {
				r.opened(&said, resp.Header.Get("Mcp-Session-Id"))
			}
		}
		r.write(text)
	})
	if err == nil && m.Method == "notifications/initialized" {
		r.listen(ctx)
	}
	return answered, err
}

// opened keeps the session that an answer to initialize opens.
func (r *Relay) opened(answer *message, id string) {
	if id == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = session{id: id, version: answer.Result.Version}
}

// read reads the messages of a response.
func (r *Relay) read(resp *http.Response, take func([]byte)) error {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode == http.StatusAccepted:
		return nil
	case resp.StatusCode == http.StatusOK && kind == "text/event-stream":
		return events(resp.Body, func(e sse.Event) {
			if e.Data != "" {
				take([]byte(e.Data))
			}
		})
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the answer: %w", err)
	case len(body) > maxAnswer:
		return fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	case resp.StatusCode == http.StatusOK && kind == "application/json":
		take(body)
		return nil
	case resp.StatusCode == http.StatusNotFound && resp.Request.Header.Get("Mcp-Session-Id") != "":
		return errForgotten
	}
	var m message
	if json.Unmarshal(body, &m) == nil && m.Error.Kind() == '{' {
		return &rpcError{m.Error}
	}
	return fmt.Errorf("what answers there is no mesh: %s, %q", resp.Status, kind)
}

// events reads an event stream (HTML Standard, section 9.2) to its end.
func events(body io.Reader, take func(sse.Event)) error {
	for e, err := range sse.Read(body, &sse.ReadConfig{MaxEventSize: maxAnswer}) {
		if err != nil {
			return err
		}
		take(e)
	}
	return nil
}

// reopen opens a session in place of one that has ended, in the client's own words, whom it tells
// nothing: a client over a pipe has one session for as long as it lives.
func (r *Relay) reopen(ctx context.Context, lost session) (session, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now != lost { // another message has found it gone
		return r.now, nil
	}
	if r.hello == nil {
		return lost, errForgotten
	}
	resp, err := r.send(ctx, http.MethodPost, r.hello, session{}, "")
	if err != nil {
		return lost, err
	}
	defer drop(resp)
	var m message
	err = r.read(resp, func(text []byte) { _ = json.Unmarshal(text, &m) })
	fresh := session{id: resp.Header.Get("Mcp-Session-Id"), version: m.Result.Version}
	switch {
	case err != nil:
		return lost, err
	case m.Error != nil:
		return lost, &rpcError{m.Error}
	case fresh.id == "" || fresh.version != lost.version:
		r.leave(ctx, fresh)
		return lost, errors.New("the mesh speaks another revision now; start the program again")
	}
	if r.ready != nil {
		told, err := r.send(ctx, http.MethodPost, r.ready, fresh, "")
		if err == nil {
			err = r.read(told, func([]byte) {})
			drop(told)
		}
		if err != nil {
			r.leave(ctx, fresh)
			return lost, err
		}
	}
	r.now = fresh
	if r.ready != nil {
		r.listenLocked(ctx)
	}
	return fresh, nil
}

// leave says that a session is not used any more.
func (r *Relay) leave(ctx context.Context, in session) {
	if in.id == "" {
		return
	}
	if resp, err := r.send(ctx, http.MethodDelete, nil, in, ""); err == nil {
		drop(resp) // it ends by itself where this was not heard
	}
}

func (r *Relay) listen(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listenLocked(ctx)
}

// listenLocked hears what the server says in the session at hand and in no other.
func (r *Relay) listenLocked(all context.Context) {
	if r.listening != nil {
		r.listening()
	}
	ctx, cancel := context.WithCancel(all)
	r.listening = cancel
	in := r.now
	r.hearing.Go(func() { r.hear(all, ctx, in) })
}

// hear writes what the server says of itself, until ctx ends or there is no stream. One that has
// ended is opened again, behind what was heard; with a session that the mesh has forgotten another
// one is opened.
func (r *Relay) hear(all, ctx context.Context, in session) {
	last, wait := "", leastWait
	for {
		resp, err := r.send(ctx, http.MethodGet, nil, in, last)
		if _, refused := errors.AsType[*tokenhttp.RefusedError](err); refused || ctx.Err() != nil {
			return
		}
		if err == nil {
			switch status := resp.StatusCode; {
			case status == http.StatusOK:
				_ = events(resp.Body, func(e sse.Event) { // however it ends, it is opened again
					last, wait = cmp.Or(e.LastEventID, last), leastWait
					if e.Data != "" {
						r.write([]byte(e.Data))
					}
				})
			case status == http.StatusNotFound:
				if _, err := r.reopen(all, in); err == nil { // which begins to hear by itself
					drop(resp)
					return
				}
			case status == http.StatusBadRequest:
				last = "" // it is no event of the session's any more
			case status < http.StatusInternalServerError && status != http.StatusTooManyRequests:
				drop(resp)
				return // the server has none
			}
			drop(resp)
		}
		select {
		case <-time.After(wait):
			wait = min(2*wait, mostWait)
		case <-ctx.Done():
			return
		}
	}
}
