package policy_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// closedPolicy denies all requests to all servers, and gives a reason for one tool.
const closedPolicy = "version: 1\nname: closed\ndefault: deny\ntools:\n  danger: {action: deny, reason: never here}\n"

// mark is a string that an agent tries to send to a server.
const mark = "MARK-7f3a"

// recordingServer is the name of the environment variable that makes this test binary run as a stdio server that
// records every byte it receives. The variable's value is the path of the recording.
const recordingServer = "SLUICE_TEST_RECORDING_SERVER"

// runRecordingServer serves MCP over stdio and records every byte that it receives.
func runRecordingServer() int {
	kept, err := os.OpenFile(os.Getenv(recordingServer), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 1
	}
	lines := bufio.NewScanner(io.TeeReader(os.Stdin, kept))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil || m.ID == nil {
			continue
		}
		result := `{}`
		switch m.Method {
		case "initialize":
			result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"},"instructions":"as the server wrote"}`
		case "tools/list":
			result = `{"tools":` + rawmcp.Tools + `}`
		}
		fmt.Printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n", m.ID, result)
	}
	return 0
}

// tap is a proxy that records every byte sent by clients to a server.
type tap struct {
	mu       sync.Mutex
	recorded []byte
}

// startTap starts a tap for the server at url, and returns the tap and its URL.
func startTap(t *testing.T, url string) (*tap, string) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host, path, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	k := new(tap)
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = lis.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			running.Go(func() { k.forward(conn, host) })
		}
	})
	return k, "http://" + lis.Addr().String() + "/" + path
}

func (k *tap) forward(conn net.Conn, host string) {
	defer conn.Close()
	up, err := net.Dial("tcp", host)
	if err != nil {
		return
	}
	defer up.Close()
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(conn, up)
		_ = conn.Close()
	}()
	_, _ = io.Copy(up, io.TeeReader(conn, k))
	_ = up.Close()
	<-back
}

func (k *tap) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.recorded = append(k.recorded, p...)
	return len(p), nil
}

func (k *tap) bytes() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return string(k.recorded)
}

// markedInitializes contains initialize requests. Every string that a client may choose contains the mark in at least
// one of these requests.
var markedInitializes = []string{
	`{"jsonrpc":"2.0","id":"` + mark + `","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"` + mark + `":{},"experimental":{"x":"` + mark + `"}},` +
		`"clientInfo":{"name":"` + mark + `","version":"` + mark + `","title":"` + mark + `","` + mark + `":1},"instructions":"` + mark + `","_meta":{"x":"` + mark + `","progressToken":"` + mark + `"}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"` + mark + `","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`,
}

// messagesWithoutRule returns messages of every method that is allowed without a rule, and some other messages:
// responses, and requests that need a rule. Strings that a client may choose contain the mark.
func messagesWithoutRule() []string {
	long := strings.Repeat(mark, 100)
	var out []string
	for _, method := range []string{"ping", "tools/list"} {
		for _, params := range []string{
			`{}`, `{"` + mark + `":1}`, `{"_meta":{"x":"` + mark + `"}}`, `{"_meta":{"progressToken":"` + mark + `"}}`, `{"cursor":"` + mark + `"}`, `{"cursor":"` + long + `"}`,
			`{"_meta":{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","tracestate":"x=` + mark + `","baggage":"` + mark + `"}}`,
		} {
			out = append(out, `{"jsonrpc":"2.0","id":"`+mark+`","method":"`+method+`","params":`+params+`}`)
		}
	}
	for _, n := range []string{
		`initialized","params":{"x":"` + mark + `","_meta":{"x":"` + mark + `"}}`,
		`cancelled","params":{"requestId":"` + mark + `","reason":"` + mark + `"}`,
		`progress","params":{"progressToken":"` + mark + `","progress":1,"message":"` + mark + `"}`,
		`roots/list_changed","params":{"x":"` + mark + `"}`,
		mark + `","params":{"x":"` + mark + `"}`,
	} {
		out = append(out, `{"jsonrpc":"2.0","method":"notifications/`+n+`}`)
	}
	out = append(out,
		`{"jsonrpc":"2.0","id":"`+mark+`","result":{"x":"`+mark+`"}}`,
		`{"jsonrpc":"2.0","id":"`+mark+`","error":{"code":1,"message":"`+mark+`"}}`,
		`{"jsonrpc":"2.0","id":"`+mark+`","method":"tools/call","params":{"name":"safe","arguments":{"x":"`+mark+`"}}}`,
		`{"jsonrpc":"2.0","id":"`+mark+`","method":"resources/read","params":{"uri":"file:///`+mark+`"}}`,
		`{"jsonrpc":"2.0","id":"`+mark+`","method":"`+mark+`"}`,
	)
	return out
}

// sendMarkedMessages sends every request of [markedInitializes] and, in each session, every message of
// [messagesWithoutRule]. The headers also contain the mark. It returns the number of messages of messagesWithoutRule
// that it sent.
func sendMarkedMessages(t *testing.T, url string) (sent int) {
	t.Helper()
	for _, initialize := range markedInitializes {
		c := stack.NewClient(t, url, stack.AgentToken)
		c.Header = http.Header{
			"User-Agent": {mark}, "X-" + mark: {mark}, "Cookie": {"x=" + mark}, "Last-Event-Id": {mark}, "Mcp-Name": {mark}, "Tracestate": {"x=" + mark}, "Baggage": {"x=" + mark},
			"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		}
		resp := c.Post(initialize)
		if resp.Status != http.StatusOK || resp.Header.Get("Mcp-Session-Id") == "" {
			t.Fatalf("initialize: %d %s", resp.Status, resp.Body)
		}
		c.Header["Mcp-Session-Id"] = resp.Header["Mcp-Session-Id"]
		for _, body := range messagesWithoutRule() {
			if resp := c.Post(body); resp.Status != http.StatusOK && resp.Status != http.StatusAccepted {
				t.Errorf("%.150s: %d %s", body, resp.Status, resp.Body)
			}
			sent++
		}
		for _, method := range []string{http.MethodGet, http.MethodDelete, http.MethodPut} {
			req, err := http.NewRequestWithContext(t.Context(), method, url+"?"+mark, strings.NewReader(mark))
			if err != nil {
				t.Fatal(err)
			}
			req.Header = c.Header.Clone()
			req.Header.Set("Authorization", "Bearer "+stack.AgentToken)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
		}
	}
	return sent
}

// Case X4. The policy denies all requests to a server. No string that the agent chose reaches the server in any part of
// any message, over HTTP or stdio.
func TestDeniedServer_ReceivesNoTextOfAnAgent(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	overHTTP, url := startTap(t, up.URL)
	file := filepath.Join(t.TempDir(), "received")
	s := stack.StartInProcess(t, stack.Options{Policy: closedPolicy, Servers: fmt.Sprintf(
		"  raw: {http: {url: %q}}\n  pipe: {stdio: {command: [%q], env: {%s: %q}}}", url, os.Args[0], recordingServer, file)})
	overStdio := func() string {
		raw, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return string(raw)
	}
	for name, received := range map[string]func() string{"raw": overHTTP.bytes, "pipe": overStdio} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := sendMarkedMessages(t, s.MCP(name))
			if got := received(); strings.Contains(strings.ToLower(got), strings.ToLower(mark)) || strings.Contains(got, "0af7651916cd43dd8448eb211c80319c") {
				t.Errorf("%d messages were sent, and %d marks arrived:\n%s", sent, strings.Count(got, mark), got)
			}
			c := stack.Connect(t, s.MCP(name), stack.AgentToken)
			listed := string(c.Post(`{"jsonrpc":"2.0","id":"a","method":"tools/list"}`).Body)
			if listed != `{"jsonrpc":"2.0","id":"a","result":{"tools":[{"name":"danger","inputSchema":{"type":"object"}}]}}` {
				t.Errorf("the listed tools are %s", listed)
			}
			if got := string(c.Post(`{"jsonrpc":"2.0","id":7,"method":"ping"}`).Body); got != `{"jsonrpc":"2.0","id":7,"result":{}}` {
				t.Errorf("the response to ping is %s", got)
			}
			before := len(received())
			sendMarkedMessages(t, s.MCP(name))
			if after := len(received()); after != before {
				t.Errorf("%d bytes arrived because of what the agent sent", after-before)
			}
		})
	}
}

// Case X4. A session is opened while the policy denies everything. The session can be used once the policy allows a
// request. Messages that were withheld until then are not sent later.
func TestDeniedServer_SessionWorksOncePolicyAllowsSomething(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, closedPolicy, "")
	c := f.Connect(t)
	if d := c.Call("safe", "{}").Decision(t); d.Code != "denied_by_default" {
		t.Fatalf("%+v", d)
	}
	before := len(f.Upstream.Requests())
	stack.WriteFile(t, f.Policy, stack.OpenPolicy)
	eventually.Holds(t, "the call is allowed", func() bool { return !c.Call("safe", `{"x":"judged"}`).IsError(t) })
	var got []string
	for _, r := range f.Upstream.Requests()[before:] {
		got = append(got, r.Method)
	}
	if want := "initialize notifications/initialized tools/call"; strings.Join(got, " ") != want {
		t.Errorf("the server received %q, want %q", got, want)
	}
	if resp := c.Post(`{"jsonrpc":"2.0","id":"a","method":"tools/list"}`); !strings.Contains(string(resp.Body), `"limited"`) {
		t.Errorf("the listed tools are %s", resp.Body)
	}
	stack.WriteFile(t, f.Policy, closedPolicy)
	eventually.Holds(t, "the call is denied", func() bool { return c.Call("safe", "{}").Decision(t).Code == "denied_by_default" })
	before = len(f.Upstream.Requests())
	for _, body := range messagesWithoutRule() {
		c.Post(body)
	}
	for _, r := range f.Upstream.Requests()[before:] {
		if r.Method != "initialize" && r.Method != "tools/list" && r.Method != "notifications/initialized" || strings.Contains(string(r.Body), mark) {
			t.Errorf("the server received %s", r.Body)
		}
	}
}

// Case X4. If the policy allows anything on a server, messages that need no rule are also sent to the server. The
// gateway does not forward them, but builds new messages that contain only the known fields.
func TestDeniedServer_PassingMessagesAreBuiltFromKnownFields(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	received, url := startTap(t, up.URL)
	s := stack.StartInProcess(t, stack.Options{Policy: stack.OpenPolicy, Servers: fmt.Sprintf("  raw: {http: {url: %q}}", url)})
	for _, initialize := range markedInitializes {
		named := strings.ReplaceAll(initialize, `"name":"`+mark+`","version":"`+mark+`"`, `"name":"a\u001b[31m client","version":"`+strings.Repeat("1", 100)+`"`)
		c := stack.NewClient(t, s.MCP("raw"), stack.AgentToken)
		c.Header = http.Header{"User-Agent": {mark}, "X-" + mark: {mark}}
		c.Header["Mcp-Session-Id"] = c.Post(named).Header["Mcp-Session-Id"]
		for _, body := range messagesWithoutRule() {
			if !strings.Contains(body, `"tools/call"`) {
				c.Post(body)
			}
		}
	}
	if got := received.bytes(); strings.Contains(strings.ToLower(got), strings.ToLower(mark)) {
		t.Errorf("%d marks arrived:\n%s", strings.Count(got, mark), got)
	}
	want := `"params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"a31m client","version":"` + strings.Repeat("1", 32) + `"}}}`
	if got := string(up.Requests()[0].Body); !strings.HasSuffix(got, want) {
		t.Errorf("the initialize request is %s", got)
	}
}
