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
	// maxResponse is the maximum size of a message from the gateway in bytes. It is the maximum size that the gateway
	// accepts from a server, plus 1 MiB for the data that the gateway adds.
	maxResponse = 17 << 20
	// minRetryWait and maxRetryWait are the minimum and the maximum delay before an ended stream is opened again. The
	// relay doubles the delay with each attempt until an event arrives.
	minRetryWait = time.Second
	maxRetryWait = 30 * time.Second
)

// errSessionNotFound means that the gateway does not know the session. The session was idle for too long, or the
// gateway was restarted.
var errSessionNotFound = errors.New("the session has ended")

// rpcError is an error from the gateway, as raw JSON.
type rpcError struct{ raw jsontext.Value }

func (e *rpcError) Error() string { return string(e.raw) }

// send sends one HTTP request in a session. If last is not empty, it is the ID of the event after which the server
// continues a stream.
func (r *Relay) send(ctx context.Context, method string, body []byte, in session, last string) (*http.Response, error) {
	url, err := r.cfg.Endpoint(ctx, method == http.MethodPost) // only a message from the client may start the mesh
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", url, err)
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

func closeBody(resp *http.Response) { _ = resp.Body.Close() }

// post sends a message in a session, and writes the messages in the HTTP response to the client. If the message opens a
// session, post stores the session. It reports whether one of the messages was the JSON-RPC response.
func (r *Relay) post(ctx context.Context, line []byte, m *message, in session) (answered bool, err error) {
	resp, err := r.send(ctx, http.MethodPost, line, in, "")
	if err != nil {
		return false, err
	}
	defer closeBody(resp)
	err = r.readMessages(resp, func(text []byte) {
		var said message
		if json.Unmarshal(text, &said) == nil && said.isResponseTo(m) {
			answered = true
			if m.Method == "initialize" {
				r.storeSession(&said, resp.Header.Get("Mcp-Session-Id"))
			}
		}
		r.write(text)
	})
	if err == nil && m.Method == "notifications/initialized" {
		r.listen(ctx)
	}
	return answered, err
}

// storeSession stores the session that the response to an initialize request opens. The session's ID is the
// Mcp-Session-Id of the HTTP response.
func (r *Relay) storeSession(answer *message, id string) {
	if id == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current = session{id: id, version: answer.Result.Version}
}

func (r *Relay) readMessages(resp *http.Response, take func([]byte)) error {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode == http.StatusAccepted:
		return nil
	case resp.StatusCode == http.StatusOK && kind == "text/event-stream":
		return readEvents(resp.Body, func(e sse.Event) {
			if e.Data != "" {
				take([]byte(e.Data))
			}
		})
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the answer of the mesh: %w", err)
	case len(body) > maxResponse:
		return fmt.Errorf("the answer of the mesh has more than %d bytes", maxResponse)
	case resp.StatusCode == http.StatusOK && kind == "application/json":
		take(body)
		return nil
	case resp.StatusCode == http.StatusNotFound && resp.Request.Header.Get("Mcp-Session-Id") != "":
		return errSessionNotFound
	}
	var m message
	if json.Unmarshal(body, &m) == nil && m.Error.Kind() == '{' {
		if resp.StatusCode == http.StatusUnauthorized && r.cfg.NewToken != "" {
			return fmt.Errorf("the mesh refused the token: %s To store another token: %s", reasonOf(m.Error), r.cfg.NewToken)
		}
		return &rpcError{m.Error}
	}
	return fmt.Errorf("the server at this URL is not a mesh: it answered %s with the content type %q; check SLUICE_URL", resp.Status, kind)
}

// reasonOf returns the message of a JSON-RPC error.
func reasonOf(rpcErr jsontext.Value) string {
	var e struct {
		Message string `json:"message"`
	}
	_ = json.Unmarshal(rpcErr, &e) // the result is empty if the error has no message
	return e.Message
}

// readEvents reads an event stream (HTML Standard, section 9.2) to its end.
func readEvents(body io.Reader, take func(sse.Event)) error {
	for e, err := range sse.Read(body, &sse.ReadConfig{MaxEventSize: maxResponse}) {
		if err != nil {
			return err
		}
		take(e)
	}
	return nil
}

// reopen opens a session to replace a session that has ended. It sends the client's initialize request and initialized
// notification again. The client does not notice this, because its own session over stdio continues.
func (r *Relay) reopen(ctx context.Context, lost session) (session, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != lost { // another message has already opened a session
		return r.current, nil
	}
	if r.initialize == nil {
		return lost, errSessionNotFound
	}
	resp, err := r.send(ctx, http.MethodPost, r.initialize, session{}, "")
	if err != nil {
		return lost, err
	}
	defer closeBody(resp)
	var m message
	err = r.readMessages(resp, func(text []byte) { _ = json.Unmarshal(text, &m) })
	fresh := session{id: resp.Header.Get("Mcp-Session-Id"), version: m.Result.Version}
	switch {
	case err != nil:
		return lost, err
	case m.Error != nil:
		return lost, &rpcError{m.Error}
	case fresh.id == "" || fresh.version != lost.version:
		r.deleteSession(ctx, fresh)
		return lost, errors.New("the mesh now speaks another revision of MCP: restart this program")
	}
	if r.initialized != nil {
		told, err := r.send(ctx, http.MethodPost, r.initialized, fresh, "")
		if err == nil {
			err = r.readMessages(told, func([]byte) {})
			closeBody(told)
		}
		if err != nil {
			r.deleteSession(ctx, fresh)
			return lost, err
		}
	}
	r.current = fresh
	if r.initialized != nil {
		r.listenLocked(ctx)
	}
	return fresh, nil
}

// deleteSession ends a session with a DELETE request. It ignores errors, because the gateway ends idle sessions anyway.
func (r *Relay) deleteSession(ctx context.Context, in session) {
	if in.id == "" {
		return
	}
	if resp, err := r.send(ctx, http.MethodDelete, nil, in, ""); err == nil {
		closeBody(resp)
	}
}

func (r *Relay) listen(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listenLocked(ctx)
}

// listenLocked starts reading the GET stream of the current session, and stops reading the stream of the previous
// session. The caller must hold r.mu.
func (r *Relay) listenLocked(all context.Context) {
	if r.stopListening != nil {
		r.stopListening()
	}
	ctx, cancel := context.WithCancel(all)
	r.stopListening = cancel
	in := r.current
	r.streams.Go(func() { r.readStream(all, ctx, in) })
}

// readStream writes the events in a session's GET stream to the client until ctx is done. It returns early if the
// server has no stream. If the stream ends, readStream opens it again and continues after the last event. If the mesh
// has lost the session, readStream opens another session.
func (r *Relay) readStream(all, ctx context.Context, in session) {
	last, wait := "", minRetryWait
	for {
		resp, err := r.send(ctx, http.MethodGet, nil, in, last)
		if _, refused := errors.AsType[*tokenhttp.RefusedError](err); refused || ctx.Err() != nil {
			return
		}
		if err == nil {
			switch status := resp.StatusCode; {
			case status == http.StatusOK:
				_ = readEvents(resp.Body, func(e sse.Event) { // after an error, the stream is opened again too
					last, wait = cmp.Or(e.LastEventID, last), minRetryWait
					if e.Data != "" {
						r.write([]byte(e.Data))
					}
				})
			case status == http.StatusNotFound:
				if _, err := r.reopen(all, in); err == nil { // the new session has its own stream
					closeBody(resp)
					return
				}
			case status == http.StatusBadRequest:
				last = "" // the ID of the event belongs to another session
			case status < http.StatusInternalServerError && status != http.StatusTooManyRequests:
				closeBody(resp)
				return // the server has no stream
			}
			closeBody(resp)
		}
		select {
		case <-time.After(wait):
			wait = min(2*wait, maxRetryWait)
		case <-ctx.Done():
			return
		}
	}
}
