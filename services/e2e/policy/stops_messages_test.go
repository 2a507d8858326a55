package policy_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// stopMessagesPolicy allows all methods, and has a rule that selects resources by URI.
const stopMessagesPolicy = `version: 1
name: stops
default: allow
rules:
  - {name: all, match: {method: "*"}, action: allow}
  - {name: secrets, match: {uri: "file:///secret*"}, action: deny}
`

// taskServer is an MCP server with tasks and a stream of notifications. If modern is true, it is a stateless server of
// revision 2026-07-28. Otherwise it uses sessions.
type taskServer struct {
	modern bool
	url    string

	mu       sync.Mutex
	received []string
	streams  map[chan string]bool
}

func startTaskServer(t *testing.T, modern bool) *taskServer {
	t.Helper()
	s := &taskServer{modern: modern, streams: make(map[chan string]bool)}
	web := httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	s.url = web.URL
	return s
}

func (s *taskServer) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && !s.modern {
		s.stream(w, r, "")
		return
	}
	var m struct {
		ID     json.RawMessage
		Method string
	}
	body, err := io.ReadAll(r.Body)
	switch {
	case err != nil || r.Method != http.MethodPost || json.Unmarshal(body, &m) != nil:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	case s.modern != (r.Header.Get("Mcp-Protocol-Version") == "2026-07-28"):
		w.WriteHeader(http.StatusBadRequest)
		return
	case m.ID == nil:
		w.WriteHeader(http.StatusAccepted)
		return
	}
	s.mu.Lock()
	s.received = append(s.received, m.Method)
	s.mu.Unlock()
	if m.Method == "subscriptions/listen" {
		s.stream(w, r, string(m.ID))
		return
	}
	w.Header().Set("Mcp-Session-Id", "session")
	rawmcp.Result(taskServerResult(m.Method))(w, r, string(m.ID))
}

// taskServerResult returns the result of a request, as raw JSON.
func taskServerResult(method string) string {
	switch method {
	case "initialize":
		return `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":{"subscribe":true},"tasks":{}},"serverInfo":{"name":"tasks","version":"1"}}`
	case "server/discover":
		return `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"resources":{"subscribe":true},"extensions":{"io.modelcontextprotocol/tasks":{}}},"serverInfo":{"name":"tasks","version":"1"}}`
	case "tools/list":
		return `{"resultType":"complete","tools":` + rawmcp.ToolList("start") + `}`
	case "tools/call":
		return `{"resultType":"task","taskId":"t-1","status":"working"}`
	default:
		return `{"resultType":"complete","taskId":"t-1","status":"working"}`
	}
}

// stream writes to the response all notifications that are passed to the method say. In revision 2026-07-28, id is the
// id of the subscription.
func (s *taskServer) stream(w http.ResponseWriter, r *http.Request, id string) {
	says := make(chan string, 100)
	s.mu.Lock()
	s.streams[says] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.streams, says)
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	meta := ""
	if id != "" {
		meta = `"_meta":{"io.modelcontextprotocol/subscriptionId":` + id + `}`
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\",\"params\":{%s}}\n\n", meta)
	}
	for {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case said := <-says:
			method, uri, _ := strings.Cut(said, " ")
			params := meta
			if uri != "" {
				params = strings.TrimPrefix(meta+`,"uri":"`+uri+`"`, ",")
			}
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/%s\",\"params\":{%s}}\n\n", method, params)
		}
	}
}

// say sends a notification on all streams. notification is the method, which may be followed by a space and the URI of
// a resource.
func (s *taskServer) say(notification string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for says := range s.streams {
		says <- notification
	}
}

// count returns the number of requests with the given method that the server has received.
func (s *taskServer) count(method string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.received {
		if m == method {
			n++
		}
	}
	return n
}

// stopClient sends requests to a task server, in the protocol revision of that server.
type stopClient struct {
	t       *testing.T
	server  *taskServer
	url     string
	session string
	// task is the id that the client sends in requests about a task.
	task string
}

func (m *stopMesh) newStopClient(name string, server *taskServer) *stopClient {
	m.t.Helper()
	c := &stopClient{t: m.t, server: server, url: m.MCP(name), task: "t-1"}
	if !server.modern {
		c.session = stack.Connect(m.t, c.url, stack.AgentToken).Session()
		return c
	}
	body := c.post("tools/call", "start", `"name":"start","arguments":{}`)
	_, rest, _ := strings.Cut(body, `"taskId":"`)
	if c.task, _, _ = strings.Cut(rest, `"`); c.task == "" {
		m.t.Fatalf("a call that starts a task is answered with %s", body)
	}
	return c
}

func (c *stopClient) request(method, name, params string) *http.Request {
	c.t.Helper()
	header := http.Header{
		"Authorization": {"Bearer " + stack.AgentToken}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Mcp-Protocol-Version": {"2025-11-25"}, "Mcp-Session-Id": {c.session},
	}
	if c.server.modern {
		params = strings.TrimPrefix(params+`,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
			`"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`, ",")
		header["Mcp-Protocol-Version"], header["Mcp-Method"] = []string{"2026-07-28"}, []string{method}
		delete(header, "Mcp-Session-Id")
		if name != "" {
			header["Mcp-Name"] = []string{name}
		}
	}
	kind, body := http.MethodPost, io.Reader(strings.NewReader(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s}}`, method, params)))
	if method == "" {
		kind, body = http.MethodGet, http.NoBody
		header["Accept"] = []string{"text/event-stream"}
	}
	req, err := http.NewRequestWithContext(c.t.Context(), kind, c.url, body)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header = header
	return req
}

// post sends a request and returns the body of the response.
func (c *stopClient) post(method, name, params string) string {
	c.t.Helper()
	resp, err := http.DefaultClient.Do(c.request(method, name, params))
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(body)
}

// subscribe subscribes to a resource, and returns the messages on the client's stream of notifications.
func (c *stopClient) subscribe(uri string) <-chan string {
	c.t.Helper()
	req := c.request("subscriptions/listen", "", `"notifications":{"toolsListChanged":true,"resourceSubscriptions":["`+uri+`"]}`)
	if !c.server.modern {
		c.post("resources/subscribe", "", `"uri":"`+uri+`"`)
		req = c.request("", "", "")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	messages := make(chan string, 1000)
	c.t.Cleanup(func() { _ = resp.Body.Close() })
	go func() {
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				messages <- data
			}
		}
	}()
	return messages
}

// taskMesh is a mesh with two task servers: one that uses sessions, and one of revision 2026-07-28. One client of each
// server has subscribed to a resource.
type taskMesh struct {
	*stopMesh
	servers map[string]*taskServer
	clients map[string]*stopClient
	streams map[string]<-chan string
}

func startTaskMesh(t *testing.T) *taskMesh {
	t.Helper()
	m := &taskMesh{
		servers: map[string]*taskServer{"sessions": startTaskServer(t, false), "modern": startTaskServer(t, true)},
		clients: make(map[string]*stopClient), streams: make(map[string]<-chan string),
	}
	s := stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  sessions: {http: {url: %q}}\n  modern: {http: {url: %q}}", m.servers["sessions"].url, m.servers["modern"].url),
		Policy:  stopMessagesPolicy, Listen: stack.FreeAddr(t), GRPC: stack.FreeAddr(t),
	})
	m.stopMesh = &stopMesh{Process: stack.Start(t, s), t: t}
	for name, server := range m.servers {
		m.clients[name] = m.newStopClient(name, server)
		m.streams[name] = m.clients[name].subscribe("file:///a")
	}
	return m
}

// taskRequests is the number of requests that [taskMesh.sendTaskRequests] sends.
const taskRequests = 7

// sendTaskRequests sends each request about a task to both servers. It returns the requests that the servers have
// received, and the responses.
func (m *taskMesh) sendTaskRequests() (received, responses []string) {
	m.t.Helper()
	for name, methods := range map[string][]string{
		"sessions": {"tasks/get", "tasks/result", "tasks/cancel", "tasks/list"},
		"modern":   {"tasks/get", "tasks/update", "tasks/cancel"},
	} {
		client := m.clients[name]
		for _, method := range methods {
			before := m.servers[name].count(method)
			responses = append(responses, client.post(method, client.task, `"taskId":"`+client.task+`"`))
			if m.servers[name].count(method) > before {
				received = append(received, name+" "+method)
			}
		}
	}
	return received, responses
}

// awaitUpdate waits until the client of each server is notified that the resource has changed.
func (m *taskMesh) awaitUpdate(uri string) {
	m.t.Helper()
	for name, server := range m.servers {
		eventually.Holds(m.t, name+" notifies its client of "+uri, func() bool {
			server.say("resources/updated " + uri)
			select {
			case message := <-m.streams[name]:
				return strings.Contains(message, `"uri":"`+uri+`"`)
			case <-time.After(20 * time.Millisecond):
				return false
			}
		})
	}
}

// next returns the next message that the client of a server receives.
func (m *taskMesh) next(server string) string {
	m.t.Helper()
	select {
	case message := <-m.streams[server]:
		return message
	case <-time.After(time.Minute):
		m.t.Fatalf("the client of %s receives no message", server)
		return ""
	}
}

// checkStopped checks that only the servers for which the function running returns true receive requests about tasks.
// The other servers must be able to notify their clients only of changed lists.
func (m *taskMesh) checkStopped(running func(server string) bool) {
	m.t.Helper()
	received, responses := m.sendTaskRequests()
	refused := slices.DeleteFunc(responses, func(r string) bool {
		return !strings.Contains(r, `"code":"stopped"`) || !strings.Contains(r, "it loops.")
	})
	if len(refused)+len(received) != taskRequests || len(refused) < 3 {
		m.t.Errorf("%d requests were refused because of the stop, and the servers received %q", len(refused), received)
	}
	for _, request := range received {
		if name, _, _ := strings.Cut(request, " "); !running(name) {
			m.t.Errorf("after the acknowledgement the server received %s", request)
		}
	}
	for name, server := range m.servers {
		if running(name) {
			continue
		}
		server.say("resources/updated file:///a?stopped")
		server.say("message")
		server.say("tools/list_changed")
		for message := ""; !strings.Contains(message, "tools/list_changed"); {
			message = m.next(name)
			if strings.Contains(message, "file:///a?stopped") || strings.Contains(message, "notifications/message") {
				m.t.Errorf("after the acknowledgement the client of %s received %s", name, message)
			}
		}
	}
}

// An operator stops an agent, and later each server. After the acknowledgement of a stop, the server receives no
// request about the agent's tasks, and the agent is not notified about resources. This is true with and without
// sessions. Notifications of changed lists still arrive. After the resume, requests and notifications arrive again.
func TestStop_EndsTasksAndUpdatesOfResources(t *testing.T) {
	t.Parallel()
	m := startTaskMesh(t)
	m.awaitUpdate("file:///a?before")
	if received, responses := m.sendTaskRequests(); len(received) != taskRequests {
		t.Fatalf("before the stop the servers received %q; the clients received %q", received, responses)
	}
	for _, selector := range [][]string{{"--agent", "dev"}, {"--server", "sessions"}, {"--server", "modern"}} {
		m.mustRun(append([]string{"stop", "-m", "it loops"}, selector...)...)
		m.checkStopped(func(server string) bool { return selector[0] == "--server" && selector[1] != server })
		m.mustRun(append([]string{"resume"}, selector...)...)
		m.awaitUpdate("file:///a?resumed-" + selector[1])
		if received, _ := m.sendTaskRequests(); len(received) != taskRequests {
			t.Errorf("%q: after the resume the servers received %q", selector, received)
		}
	}
}

// A call waits for an approver as a task of the gateway. The call is approved, and then an operator stops the agent.
// When the client requests the task, the call is refused. The approval stays valid, so that the call runs when it is
// repeated after the resume.
func TestStop_ApprovedTaskDoesNotRun(t *testing.T) {
	t.Parallel()
	m := startStopMesh(t)
	c := &stopClient{t: t, server: &taskServer{modern: true}, url: m.MCP("raw")}
	created := c.post("tools/call", "pay", `"name":"pay","arguments":{"sum":1}`)
	_, rest, _ := strings.Cut(created, `"taskId":"`)
	task, _, found := strings.Cut(rest, `"`)
	if !found {
		t.Fatalf("a call that needs an approval: %s", created)
	}
	id := (&rawmesh.Mesh{Upstream: m.upstream, Stack: m.Stack}).AwaitOnePending(t)
	m.mustRun("approvals", "approve", id, "--yes")
	m.mustRun("stop", "--agent", "dev", "-m", "it loops")
	var got string
	eventually.Holds(t, "the task ends", func() bool {
		got = c.post("tasks/get", task, `"taskId":"`+task+`"`)
		return !strings.Contains(got, `"status":"working"`)
	})
	if !strings.Contains(got, "Stopped by an operator: it loops.") || len(m.upstream.Calls("pay")) != 0 {
		t.Errorf("an approved task of a stopped agent: %s", got)
	}
	m.mustRun("resume", "--agent", "dev")
	if got := c.post("tools/call", "pay", `"name":"pay","arguments":{"sum":1}`); !strings.Contains(got, `"text":"ran"`) || len(m.upstream.Calls("pay")) != 1 {
		t.Errorf("after the resume: %s", got)
	}
}
