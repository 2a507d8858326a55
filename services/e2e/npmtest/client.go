package npmtest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/e2e/npm"
)

const (
	replyTimeout = 2 * time.Minute // maximum wait for one response; the SDK's default timeout is 60 s
	exitTimeout  = 5 * time.Second // maximum time in which the process must exit after its input was closed
	longestLine  = 64 << 20        // size limit of one response, in bytes
)

// Client runs the official TypeScript SDK in a separate process. Its methods are safe for concurrent use. If the SDK
// fails, the [Reply] contains the SDK's error. If the process itself fails, the test fails, and the reply contains an
// error named HarnessError.
type Client struct {
	t testing.TB

	mu      sync.Mutex
	in      io.WriteCloser
	last    int64
	waiting map[int64]chan Reply
	ended   error // why no more responses arrive, or nil while the process runs
}

// ToolCall contains the parameters of a `tools/call` request as the SDK's users write them.
type ToolCall struct {
	// Name is the name of the tool.
	Name string
	// Arguments is any value that marshals to a JSON object. If it is nil, the request has no arguments. All digits of an
	// integer are sent.
	Arguments any
	// Meta is sent as `_meta` unless it is nil.
	Meta map[string]any
	// Progress is true if the call requests progress notifications. Each notification restarts the timeout.
	Progress bool
	// Timeout is the SDK's timeout. It must be 0 or at least 1 ms. If it is 0, the SDK's default of 60 s applies.
	Timeout time.Duration
}

// command is one line of the program's input, which client.mjs describes.
type command struct {
	ID        int64          `json:"id"`
	Op        string         `json:"op"`
	URL       string         `json:"url,omitzero"`
	Token     string         `json:"token,omitzero"`
	Negotiate bool           `json:"negotiate,omitzero"`
	Redirect  string         `json:"redirect,omitzero"`
	ClientID  string         `json:"clientId,omitzero"`
	Code      string         `json:"code,omitzero"`
	Issuer    string         `json:"iss,omitzero"`
	Method    string         `json:"method,omitzero"`
	Params    any            `json:"params,omitzero"`
	Name      string         `json:"name,omitzero"`
	Arguments any            `json:"arguments,omitzero"`
	Meta      map[string]any `json:"_meta,omitzero"`
	Progress  bool           `json:"progress,omitzero"`
	TimeoutMs int64          `json:"timeoutMs,omitzero"`
}

// StartClient starts a client with version 1 of the SDK and connects it to the Streamable HTTP endpoint at url. If
// token is empty, the client sends no bearer token. The test fails if the client can't connect. The process is stopped
// when the test ends.
func StartClient(t testing.TB, url, token string) *Client {
	t.Helper()
	return StartClientVersion(t, npm.TypeScriptSDK, url, token)
}

// StartClientVersion is like StartClient but also selects the SDK's version, which is [npm.TypeScriptSDK] or
// [npm.TypeScriptSDK2].
func StartClientVersion(t testing.TB, version npm.Set, url, token string) *Client {
	t.Helper()
	c := NewClient(t, version)
	if reply := c.Connect(url, token); reply.Error != nil {
		t.Fatalf("connect the TypeScript SDK to %s: %v", url, reply.Error)
	}
	return c
}

// NewClient starts a client with the given version of the SDK, but does not connect it. The process is stopped when the
// test ends.
func NewClient(t testing.TB, version npm.Set) *Client {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), Node(t), script(t, version))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatalf("start the TypeScript SDK: %v", err)
	}
	c := &Client{t: t, in: in, waiting: map[int64]chan Reply{}}
	read := make(chan struct{})
	go func() { defer close(read); c.readReplies(out) }()
	t.Cleanup(func() {
		stop(t, cmd, in, read)
		if t.Failed() && said.Len() > 0 {
			t.Logf("the TypeScript SDK's process said:\n%s", said.String())
		}
	})
	return c
}

// stop closes the process's input, so that it exits. It kills the process if it still runs after exitTimeout.
func stop(t testing.TB, cmd *exec.Cmd, in io.Closer, read <-chan struct{}) {
	t.Helper()
	_ = in.Close() // the process may have ended already
	overdue := time.AfterFunc(exitTimeout, func() { _ = cmd.Process.Kill() })
	defer overdue.Stop()
	<-read
	if err := cmd.Wait(); err != nil {
		t.Errorf("the TypeScript SDK's process: %v", err)
	}
}

// script writes the client program and a link to the SDK to a new directory, because Node resolves imports relative to
// the program. It returns the program's path.
func script(t testing.TB, version npm.Set) string {
	t.Helper()
	client, sdk, err := npm.ClientScripts(version)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "client.mjs")
	if err := errors.Join(
		os.Symlink(Install(t, version).Module(""), filepath.Join(dir, "node_modules")),
		os.WriteFile(path, client, 0o600), os.WriteFile(filepath.Join(dir, "sdk.mjs"), sdk, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	return path
}

// Connect opens a session. The result has the members sessionId, protocolVersion, serverInfo, capabilities and
// instructions.
func (c *Client) Connect(url, token string) Reply {
	return c.roundTrip(command{Op: "connect", URL: url, Token: token})
}

// Negotiate is like Connect, but first requests the server's revisions with `server/discover`. Only version 2 of the
// SDK supports it.
func (c *Client) Negotiate(url, token string) Reply {
	return c.roundTrip(command{Op: "connect", URL: url, Token: token, Negotiate: true})
}

// Authorize begins a sign-in at the authorization server that the MCP server's metadata names, and returns the URL at
// which the person signs in. If clientID is empty, the client registers itself. FinishAuth ends the sign-in.
func (c *Client) Authorize(url, redirect, clientID string) (authorizationURL string) {
	c.t.Helper()
	reply := c.roundTrip(command{Op: "authorize", URL: url, Redirect: redirect, ClientID: clientID})
	if reply.Error != nil {
		c.t.Fatalf("begin a sign-in at %s: %v", url, reply.Error)
	}
	var result struct {
		AuthorizationURL string `json:"authorizationUrl"`
	}
	if err := json.Unmarshal(reply.Result, &result); err != nil {
		c.t.Fatal(err)
	}
	return result.AuthorizationURL
}

// FinishAuth ends a sign-in and opens a session. code and issuer are parameters of the redirect. issuer may be empty.
func (c *Client) FinishAuth(code, issuer string) Reply {
	return c.roundTrip(command{Op: "finishAuth", Code: code, Issuer: issuer})
}

// ListTools sends `tools/list`. After that, the SDK validates the results of calls against the listed output schemas.
func (c *Client) ListTools() Reply { return c.roundTrip(command{Op: "listTools"}) }

// CallTool sends `tools/call` and waits for the result.
func (c *Client) CallTool(call ToolCall) Reply {
	return c.roundTrip(command{
		Op: "callTool", Name: call.Name, Arguments: call.Arguments, Meta: call.Meta,
		Progress: call.Progress, TimeoutMs: call.Timeout.Milliseconds(),
	})
}

// Request sends a request with any method. params is any value that marshals to a JSON object. If params is nil, the
// request has no params.
func (c *Client) Request(method string, params any) Reply {
	return c.roundTrip(command{Op: "request", Method: method, Params: params})
}

// Close ends the session (HTTP DELETE) and the connection. The client may connect again.
func (c *Client) Close() Reply { return c.roundTrip(command{Op: "close"}) }

// roundTrip sends a command and waits for its response.
func (c *Client) roundTrip(cmd command) Reply {
	answer, err := c.send(cmd)
	if err != nil {
		return c.failHarness(cmd.Op, err)
	}
	timeout := time.NewTimer(replyTimeout)
	defer timeout.Stop()
	select {
	case reply, ok := <-answer:
		if ok {
			return reply
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.failHarness(cmd.Op, c.ended)
	case <-timeout.C:
		return c.failHarness(cmd.Op, fmt.Errorf("no response within %s", replyTimeout))
	}
}

// failHarness fails the test because the process, and not the SDK, has failed. It returns a reply with the error
// HarnessError.
func (c *Client) failHarness(op string, err error) Reply {
	c.t.Errorf("ask the TypeScript SDK's process to %s: %v", op, err)
	return Reply{Error: &Error{Name: "HarnessError", Message: err.Error()}}
}

func (c *Client) send(cmd command) (<-chan Reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return nil, c.ended
	}
	c.last++
	cmd.ID = c.last
	line, err := json.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("write the command: %w", err)
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		return nil, fmt.Errorf("send the command: %w", err)
	}
	answer := make(chan Reply, 1)
	c.waiting[cmd.ID] = answer
	return answer, nil
}

// readReplies delivers responses to the waiting callers until the process's output ends.
func (c *Client) readReplies(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		var reply Reply
		if err := json.Unmarshal(lines.Bytes(), &reply); err != nil {
			c.failAll(fmt.Errorf("read a response: %w: %s", err, lines.Bytes()))
			return
		}
		c.deliver(reply)
	}
	c.failAll(fmt.Errorf("the process ended: %w", errors.Join(lines.Err(), io.EOF)))
}

func (c *Client) deliver(reply Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if answer, ok := c.waiting[reply.ID]; ok {
		delete(c.waiting, reply.ID)
		answer <- reply
	}
}

// failAll makes all waiting commands and all later commands fail with the given error.
func (c *Client) failAll(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = why
	for id, answer := range c.waiting {
		delete(c.waiting, id)
		close(answer)
	}
}
