package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/policy"
)

const (
	// startAndListTimeout is the timeout for starting a server and listing its tools. Starting the server can include
	// downloading a package.
	startAndListTimeout = 2 * time.Minute
	// maxStderr limits how many bytes of the server's standard error are kept for error messages.
	maxStderr = 4 << 10
)

type startedServer struct {
	conn   mcp.Connection
	lastID int
}

func listToolsOfCommand(ctx context.Context, command []string) (list []byte, err error) {
	listed, err := listServerOfCommand(ctx, exec.Command(command[0], command[1:]...)) //nolint:gosec,noctx // the user's own command; its connection ends it
	return listed.tools, err
}

// listedServer contains a server's own data. The capabilities are a JSON object, and the tools are a JSON array.
type listedServer struct{ capabilities, tools jsontext.Value }

// listServerOfCommand starts a server with a command and lists the server's tools. The command must not have been
// started. listServerOfCommand sets its standard streams.
func listServerOfCommand(ctx context.Context, cmd *exec.Cmd) (listed listedServer, err error) {
	if cmd.Err != nil { // the program was not found
		return listed, fmt.Errorf("start %s: %w", cmd.Args[0], cmd.Err)
	}
	stderr := &tailBuffer{}
	cmd.Stderr = stderr
	listed, err = listServer(ctx, &childTransport{cmd: cmd, stopped: ctx.Done()})
	if err != nil {
		err = fmt.Errorf("%s: %w%s", strings.Join(cmd.Args, " "), err, stderr.errorSuffix())
	}
	return listed, err
}

// listServer connects to a server, lists its tools, and closes the connection.
func listServer(ctx context.Context, transport mcp.Transport) (_ listedServer, err error) {
	ctx, cancel := context.WithTimeout(ctx, startAndListTimeout)
	defer cancel()
	conn, err := transport.Connect(ctx)
	if err != nil {
		return listedServer{}, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the list is complete, so an error does not matter
	c := &startedServer{conn: conn}
	raw, err := c.request(ctx, "initialize", map[string]any{
		"protocolVersion": protocolVersion, "capabilities": struct{}{}, "clientInfo": map[string]string{"name": "sluice", "version": app.Version()},
	})
	if err != nil {
		return listedServer{}, err
	}
	var greeting struct {
		Capabilities jsontext.Value `json:"capabilities"`
	}
	if err := json.Unmarshal(raw, &greeting); err != nil {
		return listedServer{}, fmt.Errorf("read the answer to initialize: %w", err)
	}
	if err := conn.Write(ctx, &jsonrpc.Request{Method: "notifications/initialized"}); err != nil {
		return listedServer{}, err
	}
	tools, err := c.listTools(ctx)
	return listedServer{greeting.Capabilities, tools}, err
}

// listTools returns the tools on all pages of the list.
func (c *startedServer) listTools(ctx context.Context) (jsontext.Value, error) {
	all := []jsontext.Value{}
	params := make(map[string]string)
	for size := 0; ; {
		raw, err := c.request(ctx, "tools/list", params)
		if err != nil {
			return nil, err
		}
		var page struct {
			Tools      []jsontext.Value `json:"tools"`
			NextCursor string           `json:"nextCursor"`
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("read the list of tools: %w", err)
		}
		all, size = append(all, page.Tools...), size+len(raw)
		switch {
		case page.NextCursor == "":
			return json.Marshal(all)
		case page.NextCursor == params["cursor"], size > policy.MaxList, len(all) > policy.MaxTools:
			return nil, fmt.Errorf("the list of tools does not end, or is larger than %d bytes or %d tools", policy.MaxList, policy.MaxTools)
		}
		params["cursor"] = page.NextCursor
	}
}

// request sends a request and returns its result. A mesh refuses requests to a server that is still starting, for
// example because its package is being installed. In that case, request waits and tries again.
func (c *startedServer) request(ctx context.Context, method string, params any) (jsontext.Value, error) {
	for {
		result, err := c.requestOnce(ctx, method, params)
		wait := retryAfter(err)
		if wait == 0 {
			return result, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// retryAfter returns how long to wait before a refused request is sent again, or 0 if the error does not contain this
// time.
func retryAfter(err error) time.Duration {
	const longest = 10 * time.Second // wait at most this long, because the server may be ready earlier
	refused, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok {
		return 0
	}
	var decision struct {
		RetryAfterMS int64 `json:"retryAfterMs"`
	}
	if json.Unmarshal(refused.Data, &decision) != nil || decision.RetryAfterMS <= 0 {
		return 0
	}
	return time.Duration(min(decision.RetryAfterMS, longest.Milliseconds())) * time.Millisecond
}

// requestOnce sends a request and returns its result. If the server sends requests before its response, requestOnce
// responds to them with errors.
func (c *startedServer) requestOnce(ctx context.Context, method string, params any) (jsontext.Value, error) {
	c.lastID++
	id, err := jsonrpc.MakeID(float64(c.lastID))
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	if err := c.conn.Write(ctx, &jsonrpc.Request{ID: id, Method: method, Params: raw}); err != nil {
		return nil, fmt.Errorf("%s: the server did not answer: %w", method, err)
	}
	for {
		message, err := c.conn.Read(ctx)
		switch m := message.(type) {
		case nil:
			return nil, fmt.Errorf("%s: the server did not answer: %w", method, err)
		case *jsonrpc.Request:
			if !m.IsCall() {
				continue
			}
			refusal := &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "this client only lists tools"}
			if err := c.conn.Write(ctx, &jsonrpc.Response{ID: m.ID, Error: refusal}); err != nil {
				return nil, err
			}
		case *jsonrpc.Response:
			if m.ID != id {
				continue
			}
			return jsontext.Value(m.Result), m.Error
		}
	}
}

// tailBuffer is a writer that keeps the last maxStderr bytes.
type tailBuffer struct{ buf []byte }

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-maxStderr):]
	return len(p), nil
}

// stderrBegins introduces a server's output in an error message.
const stderrBegins = "; the server's standard error ends with:\n"

// errorSuffix returns the stored output as a suffix for an error message.
func (t *tailBuffer) errorSuffix() string {
	if stderr := bytes.TrimSpace(t.buf); len(stderr) > 0 {
		return stderrBegins + string(stderr)
	}
	return ""
}
