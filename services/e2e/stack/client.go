package stack

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// Client is an MCP client that sends exactly the bytes that a test specifies. Only TryPost is safe for concurrent use.
type Client struct {
	t       testing.TB
	url     string
	token   string
	session string
	http    *http.Client
	// Version is the value of the MCP-Protocol-Version header. If it is empty, the header is not sent.
	Version string
	// Header is sent in addition to the client's own headers, and replaces headers with the same name.
	Header http.Header
}

// Response is a received HTTP response.
type Response struct {
	// Status is the HTTP status.
	Status int
	// Header contains the HTTP headers.
	Header http.Header
	// Body is the JSON-RPC message. If the response is an event stream, Body is the last message in it.
	Body []byte
	// Events contains all messages of an event stream except the last one.
	Events [][]byte
}

// Decision is the value of `_meta["dev.sluice/decision"]` in a result, or the data of an error.
type Decision struct {
	ID           string `json:"id"`
	Code         string `json:"code"`
	Rule         string `json:"rule"`
	Retryable    bool   `json:"retryable"`
	RetryAfterMs int64  `json:"retryAfterMs"`
	SessionKey   string `json:"sessionKey"`
	// PolicyRevision is the policy revision under which the decision was made.
	PolicyRevision string `json:"policyRevision"`
}

// NewClient returns a client without a session.
func NewClient(t testing.TB, url, token string) *Client {
	return &Client{t: t, url: url, token: token, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

// Connect opens a session of protocol revision 2025-11-25.
func Connect(t testing.TB, url, token string) *Client {
	t.Helper()
	c := NewClient(t, url, token)
	if err := c.Open(); err != nil {
		t.Fatal(err)
	}
	return c
}

// Open opens a session of protocol revision 2025-11-25. It replaces the client's previous session, if there is one.
func (c *Client) Open() error {
	c.session, c.Version = "", ""
	resp, err := c.TryPost([]byte(InitializeRequest))
	if err != nil {
		return err
	}
	c.session = resp.Header.Get("Mcp-Session-Id")
	if resp.Status != http.StatusOK || c.session == "" {
		return fmt.Errorf("initialize answered %d without a session: %s", resp.Status, resp.Body)
	}
	c.Version = "2025-11-25"
	_, err = c.TryPost([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	return err
}

// Session returns the session id.
func (c *Client) Session() string { return c.session }

// WithToken returns a client with the same session and another token.
func (c *Client) WithToken(token string) *Client {
	other := *c
	other.token = token
	return &other
}

// Post sends one message and returns the response. The test fails on a transport error.
func (c *Client) Post(body string) Response {
	c.t.Helper()
	resp, err := c.TryPost([]byte(body))
	if err != nil {
		c.t.Fatalf("post %.200s: %v", body, err)
	}
	return resp
}

// TryPost sends one message and returns the response, or the transport error.
func (c *Client) TryPost(body []byte) (Response, error) {
	req, err := http.NewRequest(http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return Response{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.session != "" {
		req.Header.Set("Mcp-Session-Id", c.session)
	}
	if c.Version != "" {
		req.Header.Set("Mcp-Protocol-Version", c.Version)
	}
	for key, values := range c.Header {
		req.Header[key] = values
		if key == "Host" {
			req.Host = values[0]
		}
	}
	return c.do(req)
}

func (c *Client) do(req *http.Request) (Response, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return Response{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return Response{}, err
	}
	out := Response{Status: resp.StatusCode, Header: resp.Header, Body: raw}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		var messages [][]byte
		for event := range strings.SplitSeq(string(raw), "\n\n") {
			var data []string
			for line := range strings.SplitSeq(event, "\n") {
				if text, ok := strings.CutPrefix(line, "data: "); ok && strings.TrimSpace(text) != "" { // an empty event opens a stream
					data = append(data, text)
				}
			}
			if data != nil {
				messages = append(messages, []byte(strings.Join(data, "\n")))
			}
		}
		if n := len(messages); n > 0 {
			out.Body, out.Events = messages[n-1], messages[:n-1]
		}
	}
	return out, nil
}

// Call calls a tool. The arguments are JSON.
func (c *Client) Call(tool, arguments string) Response {
	c.t.Helper()
	return c.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":` + quote(tool) + `,"arguments":` + arguments + `}}`)
}

func quote(s string) string {
	raw, _ := json.Marshal(s) // a string always marshals
	return string(raw)
}

// jsonrpcResponse contains the members of a JSON-RPC response that tests read.
type jsonrpcResponse struct {
	Result struct {
		IsError bool                       `json:"isError"`
		Content []struct{ Text string }    `json:"content"`
		Meta    map[string]json.RawMessage `json:"_meta"`
	} `json:"result"`
	Error *struct {
		Code    int             `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	} `json:"error"`
}

func (r Response) parse(t testing.TB) jsonrpcResponse {
	t.Helper()
	var a jsonrpcResponse
	if err := json.Unmarshal(r.Body, &a); err != nil {
		t.Fatalf("the response is not JSON: %v: %q", err, r.Body)
	}
	return a
}

// Decision returns the decision in the response, or the zero Decision if the response contains none.
func (r Response) Decision(t testing.TB) Decision {
	t.Helper()
	a := r.parse(t)
	raw := a.Result.Meta["dev.sluice/decision"]
	if a.Error != nil {
		raw = a.Error.Data
	}
	var d Decision
	if raw != nil {
		if err := json.Unmarshal(raw, &d); err != nil {
			t.Fatalf("the decision is not JSON: %v: %q", err, raw)
		}
	}
	return d
}

// Text returns an error's message, or the first text in a tool's result.
func (r Response) Text(t testing.TB) string {
	t.Helper()
	a := r.parse(t)
	switch {
	case a.Error != nil:
		return a.Error.Message
	case len(a.Result.Content) > 0:
		return a.Result.Content[0].Text
	default:
		return ""
	}
}

// IsError reports whether the tool's result has isError set.
func (r Response) IsError(t testing.TB) bool {
	t.Helper()
	return r.parse(t).Result.IsError
}

// ErrorCode returns the JSON-RPC error code, or 0 if the response is not an error.
func (r Response) ErrorCode(t testing.TB) int {
	t.Helper()
	if a := r.parse(t); a.Error != nil {
		return a.Error.Code
	}
	return 0
}
