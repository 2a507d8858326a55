package servers_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// echoServer is the name of the environment variable that makes this test binary run as an echo server over stdio.
const echoServer = "SLUICE_TEST_ECHO_SERVER"

// The echo server's output contains everything that a JSON library might change: unknown keys, numbers beyond the range
// of common types, different spellings of a string, and keys that are reserved for the gateway.
const (
	oddResult = `"xUnknown":[1e400, -0.0,18446744073709551617],"content":[{"type":"holo","n":9007199254740993,"\u0061":"\/h\u00e9"}],"structuredContent":{"deep":[{"m":-9007199254740993}]},"resultType":"complete"`
	oddError  = `{"code":-31999.50e0,"message":"h\u00e9","data":{"n":1e999,"xUnknown":{"\u0061":[ ]}},"xUnknown":0.10}`
	oddEvent  = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":TOKEN,"progress":1.50,"xUnknown":{"n":9007199254740993,"\u0061":[ ]}}}`
)

// echoResponses returns the echo server's responses to a message, in order. For initialize and server/discover it
// returns the results that the protocol requires.
func echoResponses(message string) []string {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			Meta struct {
				Token json.RawMessage `json:"progressToken"`
			} `json:"_meta"`
		} `json:"params"`
	}
	if err := json.Unmarshal([]byte(message), &m); err != nil || m.ID == nil {
		return nil
	}
	quoted, _ := json.Marshal(message) //nolint:errchkjson // it is text
	result := fmt.Sprintf(`{"got":%s,%s,"_meta":{"dev.sluice/decision":{"code":"forged"},"keep":1.50}}`, quoted, oddResult)
	switch m.Method {
	case "initialize":
		result = `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"echo","version":"1"}}`
	case "server/discover":
		result = `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"resultType":"complete"}`
	case "tools/list":
		result = `{"tools":[{"name":"echo","inputSchema":{"type":"object"}}],"resultType":"complete"}`
	case "vendor/fail":
		return []string{fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":%s,"got":%s}`, m.ID, oddError, quoted)}
	}
	answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
	if m.Params.Meta.Token != nil {
		return []string{strings.Replace(oddEvent, "TOKEN", string(m.Params.Meta.Token), 1), answer}
	}
	return []string{answer}
}

// runEchoServer runs the echo server over stdio.
func runEchoServer() int {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		for _, said := range echoResponses(lines.Text()) {
			fmt.Println(said)
		}
	}
	return 0
}

// startEchoServer starts an echo server over HTTP. If modern is true, it is a stateless server of revision 2026-07-28.
// Otherwise it uses sessions. If streams is true, it responds with event streams. Otherwise it responds with JSON.
func startEchoServer(t *testing.T, modern, streams bool) string {
	t.Helper()
	return startHTTPServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		said := echoResponses(string(body))
		switch {
		case err != nil || r.Method != http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case modern != (r.Header.Get("Mcp-Protocol-Version") == "2026-07-28"):
			w.WriteHeader(http.StatusBadRequest)
		case len(said) == 0:
			w.WriteHeader(http.StatusAccepted)
		case !streams && len(said) == 1:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, said[0])
		default:
			w.Header().Set("Content-Type", "text/event-stream")
			for _, message := range said {
				fmt.Fprintf(w, "event: message\ndata: %s\n\n", message)
			}
		}
	})
}

// startSSEEchoServer starts an echo server over HTTP+SSE.
func startSSEEchoServer(t *testing.T) string {
	t.Helper()
	var mu sync.Mutex
	streams := make(map[string]chan string)
	return startHTTPServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			mu.Lock()
			name, says := fmt.Sprint(len(streams)), make(chan string, 100)
			streams[name] = says
			mu.Unlock()
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "event: endpoint\ndata: /post?stream=%s\n\n", name)
			for {
				_ = http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
					return
				case message := <-says:
					fmt.Fprintf(w, "data: %s\n\n", message)
				}
			}
		}
		mu.Lock()
		says := streams[r.URL.Query().Get("stream")]
		mu.Unlock()
		body, err := io.ReadAll(r.Body)
		if says == nil || err != nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		for _, message := range echoResponses(string(body)) {
			says <- message
		}
	})
}

func startHTTPServer(t *testing.T, handle http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// Messages from clients and servers arrive byte for byte over every transport, with and without sessions. They contain
// unknown fields, numbers, different spellings, unknown content types, error data, and extension methods. Only the keys
// reserved for the gateway and, over stdio and HTTP+SSE, the ids differ.
func TestFidelity_MessagesArriveByteForByte(t *testing.T) {
	t.Parallel()
	s := stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf(`  json: {http: {url: %q}}
  streams: {http: {url: %q}}
  modern: {http: {url: %q}}
  modernstreams: {http: {url: %q}}
  older: {http: {url: %q}}
  program: {stdio: {command: [%q], env: {%s: "1"}}}`, startEchoServer(t, false, false), startEchoServer(t, false, true), startEchoServer(t, true, false), startEchoServer(t, true, true), startSSEEchoServer(t), os.Args[0], echoServer),
		Policy: "version: 1\ndefault: allow\nrules:\n  - {name: extensions, match: {method: \"vendor/*\"}, action: allow}\n"})
	const odd = `"xUnknown":{"n":-9223372036854775808,"f":1.0e2,"\u0061":"\/h\u00e9"}, "arguments":{"big":9007199254740993,"list":[ ]}`
	for _, server := range []string{"json", "streams", "modern", "modernstreams", "older", "program"} {
		for _, method := range []string{"tools/call", "vendor/echo", "vendor/fail"} {
			for _, progress := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, progress %t", server, method, progress), func(t *testing.T) {
					t.Parallel()
					meta, head := "", http.Header{}
					modern := strings.HasPrefix(server, "modern")
					if progress {
						meta = `"progressToken":"t-1"`
					}
					if modern {
						meta += `,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`
						head = http.Header{"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {method}}
						if method == "tools/call" {
							head["Mcp-Name"] = []string{"echo"}
						}
					}
					body := fmt.Sprintf(`{ "jsonrpc" : "2.0", "method":"%s","params":{"_meta":{%s},%s, "name":"echo"},"id":"caf\u00e9"}`, method, strings.TrimPrefix(meta, ","), odd)
					if !modern {
						head["Mcp-Session-Id"] = []string{stack.Connect(t, s.MCP(server), stack.AgentToken).Session()}
					}
					answer := postMessage(t, s.MCP(server), body, head)
					messages := responseMessages(string(answer))
					if want := map[bool]int{false: 1, true: 2}[progress && method != "vendor/fail"]; len(messages) != want {
						t.Fatalf("the client received %d messages, want %d: %s", len(messages), want, answer)
					}
					last := messages[len(messages)-1]
					if len(messages) == 2 && messages[0] != strings.Replace(oddEvent, "TOKEN", `"t-1"`, 1) {
						t.Errorf("before the response the client received\n%s", messages[0])
					}
					var m struct {
						Got    string
						Result struct{ Got string }
					}
					if err := json.Unmarshal([]byte(strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(last, "1e400", "0"), "1e999", "0"), "18446744073709551617", "0")), &m); err != nil {
						t.Fatal(err)
					}
					got := m.Got + m.Result.Got
					if server == "program" || server == "older" { // for these servers, the gateway assigns the ids
						got = withClientIDs(got)
					}
					if got != body {
						t.Errorf("the server got\n%s\nwant\n%s", got, body)
					}
					quoted, _ := json.Marshal(m.Got + m.Result.Got) //nolint:errchkjson // it is text
					want := fmt.Sprintf(`{"jsonrpc":"2.0","id":"caf\u00e9","result":{"got":%s,%s,"_meta":{"keep":1.50}}}`, quoted, oddResult)
					if method == "vendor/fail" {
						want = fmt.Sprintf(`{"jsonrpc":"2.0","id":"caf\u00e9","error":%s,"got":%s}`, oddError, quoted)
					}
					if last != want {
						t.Errorf("the client got\n%s\nwant\n%s", last, want)
					}
				})
			}
		}
	}
}

// withClientIDs takes a message that a server received, and replaces the gateway's id and progress token with the
// client's id and progress token.
func withClientIDs(message string) string {
	begin, _, _ := strings.Cut(message, `"id":`)
	if at := strings.Index(begin, `"progressToken":`); at >= 0 {
		end := at + strings.IndexAny(begin[at:], ",}")
		begin = begin[:at] + `"progressToken":"t-1"` + begin[end:]
	}
	return begin + `"id":"caf\u00e9"}`
}

// postMessage sends a message with additional headers and returns the body of the response.
func postMessage(t *testing.T, url, body string, head http.Header) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = head
	req.Header["Content-Type"], req.Header["Accept"] = []string{"application/json"}, []string{"application/json, text/event-stream"}
	req.Header["Authorization"] = []string{"Bearer " + stack.AgentToken}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// responseMessages returns the messages in a response. The response is either one JSON message or an event stream.
func responseMessages(answer string) (out []string) {
	if strings.HasPrefix(answer, "{") {
		return []string{answer}
	}
	for line := range strings.Lines(answer) {
		if data, is := strings.CutPrefix(line, "data: "); is {
			out = append(out, strings.TrimSuffix(data, "\n"))
		}
	}
	return out
}
