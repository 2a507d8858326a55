package cli

import (
	"bytes"
	"context"
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
	// startAndListTimeout is the timeout for starting a server and requesting the list of its tools. The start may
	// download a package.
	startAndListTimeout = 2 * time.Minute
	terminateTimeout    = 2 * time.Second
	// maxStderr is the maximum number of bytes of the server's standard error that are stored for an error.
	maxStderr = 4 << 10
)

type startedServer struct {
	conn   mcp.Connection
	lastID int
}

func listToolsOfCommand(ctx context.Context, command []string) (list []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, startAndListTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // the user's own command
	stderr := &tailBuffer{}
	cmd.Stderr = stderr
	conn, err := (&mcp.CommandTransport{Command: cmd, TerminateDuration: terminateTimeout}).Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	defer func() {
		_ = conn.Close() // the list is complete, so an error does not matter
		if err != nil {
			err = fmt.Errorf("%s: %w%s", strings.Join(command, " "), err, stderr.errorSuffix())
		}
	}()
	c := &startedServer{conn: conn}
	if _, err := c.request(ctx, "initialize", map[string]any{
		"protocolVersion": protocolVersion, "capabilities": struct{}{}, "clientInfo": map[string]string{"name": "sluice", "version": app.Version()},
	}); err != nil {
		return nil, err
	}
	if err := conn.Write(ctx, &jsonrpc.Request{Method: "notifications/initialized"}); err != nil {
		return nil, err
	}
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

// request sends a request and returns its result. If the server sends requests before its response, request answers
// each of them with an error.
func (c *startedServer) request(ctx context.Context, method string, params any) (jsontext.Value, error) {
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

// tailBuffer is a writer that stores the last maxStderr bytes.
type tailBuffer struct{ buf []byte }

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-maxStderr):]
	return len(p), nil
}

// errorSuffix returns the stored output as a suffix for an error.
func (t *tailBuffer) errorSuffix() string {
	if stderr := bytes.TrimSpace(t.buf); len(stderr) > 0 {
		return "; the server's standard error ends with:\n" + string(stderr)
	}
	return ""
}
