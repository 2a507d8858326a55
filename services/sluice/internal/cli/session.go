package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/tmaxmax/go-sse"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
	"github.com/sluice-mesh/sluice/services/sluice/internal/tokenhttp"
)

const (
	protocolVersion = "2025-11-25"
	// maxResponse is the maximum size of a response in bytes. This is the maximum size that the gateway accepts from a
	// server, plus 1 MiB for the data that the gateway adds.
	maxResponse  = 17 << 20
	closeTimeout = 2 * time.Second
)

// session is an MCP session of the agent with a server behind the mesh. Its methods return raw JSON, because a client
// library with typed results would drop unknown members, digits of large integers, and the bodies of HTTP error
// responses.
type session struct {
	url, token string
	http       *http.Client
	// id is the Mcp-Session-Id. version is the MCP revision that the server chose.
	id, version string
}

type message struct {
	Version string         `json:"jsonrpc"`
	ID      int            `json:"id,omitzero"`
	Method  string         `json:"method,omitzero"`
	Params  any            `json:"params,omitzero"`
	Result  jsontext.Value `json:"result,omitzero"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitzero"`
}

// absentError means that the agent can't use a server with this name, because it is not configured or because the
// policy hides it.
type absentError struct{ text string }

func (e absentError) Error() string { return e.text }

func openSession(ctx context.Context, client *http.Client, url, token string) (*session, error) {
	s := &session{url: url, token: token, http: client}
	result, err := s.request(ctx, "initialize", map[string]any{
		"protocolVersion": protocolVersion,
		"capabilities":    struct{}{},
		"clientInfo":      map[string]string{"name": "sluice", "version": app.Version()},
	})
	if err != nil {
		return nil, err
	}
	var server struct {
		Version string `json:"protocolVersion"`
	}
	if err := json.Unmarshal(result, &server); err != nil {
		return nil, fmt.Errorf("%s: read the answer: %w", url, err)
	}
	s.version = server.Version
	resp, err := s.send(ctx, http.MethodPost, &message{Method: "notifications/initialized"})
	if err != nil {
		return nil, err
	}
	return s, resp.Body.Close()
}

// close ends the session, even if ctx is done.
func (s *session) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if resp, err := s.send(ctx, http.MethodDelete, nil); err == nil {
		_ = resp.Body.Close() // if the request fails, the gateway ends the idle session later
	}
}

func (s *session) request(ctx context.Context, method string, params any) (jsontext.Value, error) {
	resp, err := s.send(ctx, http.MethodPost, &message{ID: 1, Method: method, Params: params})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // only the answer matters
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
		s.id = id
	}
	answer, err := readResponse(resp)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: read the answer: %w", s.url, err)
	case answer.Error != nil && method == "initialize" && resp.StatusCode == http.StatusNotFound:
		return nil, absentError{s.url + ": " + safetext.Line(answer.Error.Message)}
	case answer.Error != nil:
		return nil, fmt.Errorf("%s: %s", s.url, safetext.Line(answer.Error.Message))
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s", s.url, resp.Status)
	default:
		return answer.Result, nil
	}
}

// send sends an HTTP request. m is the message in the body, or nil for an empty body.
func (s *session) send(ctx context.Context, method string, m *message) (*http.Response, error) {
	var body bytes.Buffer
	if m != nil {
		m.Version = "2.0"
		if err := json.MarshalWrite(&body, m); err != nil {
			return nil, fmt.Errorf("write the message: %w", err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url, &body)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", s.url, err)
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if s.id != "" {
		req.Header.Set("Mcp-Session-Id", s.id)
		req.Header.Set("Mcp-Protocol-Version", s.version)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, noHTTPResponse(s.url, err)
	}
	return resp, nil
}

// noHTTPResponse returns the error for a request without an HTTP response.
func noHTTPResponse(url string, err error) error {
	if refused, ok := errors.AsType[*tokenhttp.RefusedError](err); ok {
		return refused
	}
	// A gRPC server sends bytes before it gets a request. The HTTP client parses these bytes as a malformed response, or
	// fails because they arrive before it has sent its request.
	if strings.Contains(err.Error(), "malformed HTTP response") || strings.Contains(err.Error(), "readLoopPeekFailLocked: %!w(<nil>)") {
		return fmt.Errorf("the server at %s does not speak HTTP/1.1: is this the gRPC address? Set SLUICE_URL, or listen in the configuration, to the address of MCP", url)
	}
	return fmt.Errorf("the mesh does not answer: is it up? To use another address, set SLUICE_URL, or name a configuration with --config or SLUICE_CONFIG (%w)", err)
}

// readResponse reads the JSON-RPC response to a request. This is the body, or the last event in an event stream.
// Earlier events are notifications.
func readResponse(resp *http.Response) (message, error) {
	body := io.LimitReader(resp.Body, maxResponse)
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		data, err := lastEvent(body)
		if err != nil {
			return message{}, err
		}
		body = bytes.NewReader(data)
	}
	raw, err := io.ReadAll(body)
	if err != nil {
		return message{}, err
	}
	var m message
	if err := json.Unmarshal(raw, &m); err != nil && resp.StatusCode == http.StatusOK {
		return message{}, err
	}
	return m, nil
}

// lastEvent returns the data of the last event in a stream (HTML Standard, section 9.2).
func lastEvent(body io.Reader) ([]byte, error) {
	last := ""
	for e, err := range sse.Read(body, &sse.ReadConfig{MaxEventSize: maxResponse}) {
		if err != nil {
			return nil, err
		}
		if e.Data != "" {
			last = e.Data
		}
	}
	if last == "" {
		return nil, errors.New("the event stream ended without the response")
	}
	return []byte(last), nil
}
