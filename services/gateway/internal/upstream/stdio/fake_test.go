//go:build unix

package stdio_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
	"github.com/sluice-mesh/sluice/services/internal/proclimit"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// roleVariable names the environment variable that makes this test binary run as a server. The variable's value names
// the server's behavior.
const roleVariable = "FAKE_ROLE"

// lifetime is the maximum lifetime of a process. No test waits longer for a process to end.
const lifetime = 2 * time.Minute

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	(&fake{role: role, held: map[string]jsontext.Value{}}).run()
}

// fake is an MCP server over stdio that is correct or faulty, depending on its role.
type fake struct {
	role string
	out  sync.Mutex

	inits, ready int
	discovered   int
	raws         int
	capabilities string
	cancelled    []string
	held         map[string]jsontext.Value // request ids by key
	replies      []string
}

// incoming is a message that the server has received.
type incoming struct {
	ID     jsontext.Value `json:"id,omitzero"`
	Method string         `json:"method"`
	Params struct {
		Name         string         `json:"name"`
		Arguments    jsontext.Value `json:"arguments,omitzero"`
		RequestID    jsontext.Value `json:"requestId,omitzero"`
		Capabilities jsontext.Value `json:"capabilities,omitzero"`
		Meta         struct {
			ProgressToken jsontext.Value `json:"progressToken,omitzero"`
		} `json:"_meta"`
	} `json:"params"`
}

func (f *fake) run() {
	switch f.role {
	case "exits":
		fmt.Fprintln(os.Stderr, "first words\nno licence found")
		os.Exit(7)
	case "babbles":
		fmt.Println("Welcome!\n{\"jsonrpc\":\"2.0\"\n[]")
	case "stubborn", "sleeper":
		signal.Ignore(syscall.SIGTERM)
	case "gateway":
		runGateway()
	}
	if f.role == "sleeper" {
		time.Sleep(lifetime)
	}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		f.serve(bytes.TrimSuffix(line, []byte("\n")))
	}
	if f.role == "stubborn" {
		time.Sleep(lifetime)
	}
}

func (f *fake) serve(line []byte) {
	var m incoming
	if err := json.Unmarshal(line, &m); err != nil {
		fmt.Fprintf(os.Stderr, "unreadable line: %q\n", line)
		os.Exit(9)
	}
	switch m.Method {
	case "initialize":
		f.initialize(m)
	case "server/discover":
		f.discover(m)
	case "subscriptions/listen":
		f.listen(m)
	case "notifications/initialized":
		f.ready++
	case "notifications/cancelled":
		f.cancelled = append(f.cancelled, string(m.Params.RequestID))
	case "":
		f.replies = append(f.replies, string(line))
	case "tools/call":
		f.call(m, line)
	}
}

func (f *fake) initialize(m incoming) {
	f.inits++
	f.capabilities = string(m.Params.Capabilities)
	switch f.era() {
	case "mute", "babbles":
	case "modern":
		f.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"there are no sessions"}}`, m.ID)
	case "verbose":
		f.answer(m.ID, map[string]string{"protocolVersion": "2024-11-05", "instructions": strings.Repeat("x", 64<<10)})
	case "refuses":
		f.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"not on a Monday"}}`, m.ID)
	case "marked":
		f.say("\ufeff"+`{"jsonrpc":"2.0","id":"%s","error":null,"result":{"protocolVersion":"2024-11-05","capabilities":{}}}`, m.ID)
	default:
		f.say(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2024-11-05","serverInfo":{"name":"fake","version":"1"},"capabilities":{}}}`, m.ID)
	}
}

// era returns the server's current role. A server with the role "changes" has the role "modern" while its directory
// contains a file with that name.
func (f *fake) era() string {
	if _, err := os.Stat("modern"); f.role == "changes" && err == nil {
		return "modern"
	}
	return f.role
}

func (f *fake) discover(m incoming) {
	f.discovered++
	if f.era() != "modern" {
		f.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, m.ID)
		return
	}
	f.say(`{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"resultType":"complete"}}`, m.ID)
}

// listen opens a subscription and immediately reports that two lists have changed.
func (f *fake) listen(m incoming) {
	for _, method := range []string{"subscriptions/acknowledged", "tools/list_changed", "prompts/list_changed"} {
		f.say(`{"jsonrpc":"2.0","method":"notifications/%s","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s}}}`, method, m.ID)
	}
	f.say(`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":999}}}`)
}

// say writes one line.
func (f *fake) say(format string, args ...any) {
	f.out.Lock()
	defer f.out.Unlock()
	fmt.Printf(format+"\n", args...)
}

// flood writes the same line until the process is killed. It formats the line only once, and writes the given number of
// copies at a time, because with the race detector the tests would otherwise spend most of their time here.
func (f *fake) flood(copies int, format string, args ...any) {
	f.out.Lock() // until the process ends
	lines := bytes.Repeat(fmt.Appendf(nil, format+"\n", args...), copies)
	for {
		if _, err := os.Stdout.Write(lines); err != nil {
			os.Exit(8)
		}
	}
}

// answer answers a call with a result that contains the given members.
func (f *fake) answer(id jsontext.Value, result map[string]string) {
	raw, err := json.Marshal(result)
	if err != nil {
		os.Exit(8)
	}
	f.say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, raw)
}

// args returns the call's arguments if all of them are strings.
func (m *incoming) args() map[string]string {
	var args map[string]string
	_ = json.Unmarshal(m.Params.Arguments, &args)
	return args
}

// burstSize is the length of each message in a burst, in bytes.
const burstSize = 16 << 10

func (f *fake) call(m incoming, line []byte) {
	args := m.args()
	switch m.Params.Name {
	case "line":
		f.answer(m.ID, map[string]string{"line": string(line)})
	case "info":
		f.answer(m.ID, f.info())
	case "hold":
		f.hold(args["key"], m.ID)
	case "silence":
	case "progress":
		f.progress(m)
	case "die":
		fmt.Fprintln(os.Stderr, "out of cheese")
		os.Exit(3)
	case "noise":
		f.noise(m.ID)
		f.answer(m.ID, map[string]string{"ok": "yes"})
	case "size":
		n, _ := strconv.Atoi(args["bytes"])
		f.say(`{"jsonrpc":"2.0","id":%s,"result":{"x":"%s"}}`, m.ID, strings.Repeat("x", n))
	case "stall": // writes an incomplete line
		fmt.Print(`{"jsonrpc":"2.0","id":1,"result":{"x":"`, strings.Repeat("x", 1<<20))
	case "ask":
		f.say(`{"jsonrpc":"2.0","id":"p1","method":"ping"}`)
		f.say(`{"jsonrpc":"2.0","id":41,"method":"sampling/createMessage","params":{}}`)
		f.answer(m.ID, map[string]string{"ok": "yes"})
	case "aside": // writes a message after a delay, when no call may be in flight
		f.answer(m.ID, map[string]string{"ok": "yes"})
		f.say(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}`)
		f.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		f.say(`{"jsonrpc":"2.0","id":42,"method":"roots/list"}`)
	case "pose":
		f.say(`{"jsonrpc":"2.0","id":43,"method":"notifications/tools/list_changed"}`)
		f.answer(m.ID, map[string]string{"ok": "yes"})
	case "replies":
		f.answer(m.ID, map[string]string{"replies": strings.Join(f.replies, "\n")})
	case "stderr":
		fmt.Fprint(os.Stderr, args["text"])
		f.answer(m.ID, map[string]string{"ok": "yes"})
	case "flood":
		f.flood(64, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, args["token"])
	case "flood-own":
		f.flood(64, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, m.Params.Meta.ProgressToken)
	case "flood-large":
		f.flood(1, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1,"message":"%s"}}`, m.Params.Meta.ProgressToken, strings.Repeat("x", 128<<10))
	case "burst":
		for range 60 {
			f.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1,"message":"%s"}}`, m.Params.Meta.ProgressToken, strings.Repeat("x", burstSize))
		}
		f.answer(m.ID, map[string]string{"ok": "yes"})
	case "unasked":
		f.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, m.ID)
		f.answer(m.ID, map[string]string{"ok": "yes"})
	case "raw": // writes the line in the arguments
		f.raws++
		f.say("%s", strings.NewReplacer("ID", string(m.ID), "<E9>", "\xe9", "<BOM>", "\ufeff").Replace(args["line"]))
	case "forge":
		f.say(`{"jsonrpc":"2.0","id":%s,"result":{"ok":"yes","_meta":{"dev.sluice/decision":{"id":"forged"},"theirs":1}}}`, m.ID)
	case "deaf":
		f.answer(m.ID, map[string]string{"ok": "yes"})
		time.Sleep(lifetime)
	case "breed":
		f.breed(m.ID, args["escape"] != "")
	case "save":
		_ = os.WriteFile("note", []byte(args["text"]), 0o600)
		f.answer(m.ID, map[string]string{"ok": "yes"})
	}
}

func (f *fake) info() map[string]string {
	dir, _ := os.Getwd()
	dir, _ = filepath.EvalSymlinks(dir)
	note, _ := os.ReadFile("note")
	return map[string]string{
		"pid": strconv.Itoa(os.Getpid()), "dir": dir, "note": string(note),
		"env": strings.Join(os.Environ(), "\n"), "args": strings.Join(os.Args, " "),
		"inits": strconv.Itoa(f.inits), "ready": strconv.Itoa(f.ready), "discovered": strconv.Itoa(f.discovered),
		"raws":         strconv.Itoa(f.raws),
		"held":         strings.Join(slices.Sorted(maps.Keys(f.held)), " "),
		"first":        string(f.held["first"]),
		"capabilities": f.capabilities, "cancelled": strings.Join(f.cancelled, " "),
	}
}

// hold delays the answer to a call until a call with the key "now" arrives. It then answers all delayed calls and the
// call with the key "now", in random order and each with its own key.
func (f *fake) hold(key string, id jsontext.Value) {
	f.held[key] = id.Clone()
	if key != "now" {
		return
	}
	for key, id := range f.held {
		f.answer(id, map[string]string{"key": key})
	}
	f.held = map[string]jsontext.Value{}
}

// progress sends progress notifications with the call's token, without a token, and with a token that a client could
// have chosen. After that it sends a log message and the answer.
func (f *fake) progress(m incoming) {
	note := func(token string, n int) {
		f.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"message":%q,"_meta":{"dev.sluice/x":1}}}`,
			token, n, m.args()["key"])
	}
	for n := range 3 {
		note(string(m.Params.Meta.ProgressToken), n+1)
		note("999999", n+1)
		note(`"mine"`, n+1)
	}
	f.say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"hello"}}`)
	f.answer(m.ID, map[string]string{"key": m.args()["key"]})
}

// noise writes messages that the gateway must drop while the call with the given id is in flight.
func (f *fake) noise(id jsontext.Value) {
	const forged = `"result":{"forged":"yes"}}`
	f.say("this is not JSON")
	f.say("")
	f.say("null")
	f.say(`[[{"jsonrpc":"2.0","id":%s,%s]]`, id, forged)
	f.say(`{"jsonrpc":"2.0","id":%s,"id":%s000,%s`, id, id, forged)
	f.say(`{"jsonrpc":"2.0","id":%s000,"result":{"a":1,"a":2}}`, id)
	f.say(`{"jsonrpc":"2.0","id":null,"result":{"a":"` + "\xff" + `"}}`)
	f.say(`{"level":"info","id":%s,"error":"no answer"}`, id)
	f.say(`{"jsonrpc":"2.0","ID":%s,%s`, id, forged)
	f.say(`{"jsonrpc":"2.0","id":"x%s",%s`, id, forged)
	f.say(`{"jsonrpc":"2.0","id":"",%s`, forged)
	f.say(`{"jsonrpc":"2.0","id":%s000,%s`, id, forged)
	f.say(`{"jsonrpc":"2.0","id":{"n":%s},%s`, id, forged)
	f.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
}

// breed starts a grandchild that ignores SIGTERM and keeps the pipes open. If escape is true, the grandchild is outside
// the process group.
func (f *fake) breed(id jsontext.Value, escape bool) {
	if escape {
		f.answer(id, map[string]string{"pid": escapedSleeper()})
		return
	}
	child := exec.Command(os.Args[0])
	child.Env = []string{roleVariable + "=sleeper"}
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	if err := child.Start(); err != nil {
		os.Exit(8)
	}
	f.answer(id, map[string]string{"pid": strconv.Itoa(child.Process.Pid)})
}

// escapedSleeper starts a process in its own session that keeps the pipes open, and returns its process id. The parent
// of that process ends immediately, so that the process is not a descendant of this process.
func escapedSleeper() string {
	parent := exec.Command("sh", "-c", "setsid sleep 300 </dev/null >&3 2>&3 & echo $!")
	parent.ExtraFiles = []*os.File{os.Stdout}
	pid, err := parent.Output()
	if err != nil {
		os.Exit(8)
	}
	return strings.TrimSpace(string(pid))
}

// runGateway runs a gateway with one session. It prints the id of the process that serves the session, and waits until
// it is killed.
func runGateway() {
	self, _ := os.Executable()
	srv, err := stdio.New(stdio.Config{
		Name: "orphan", Command: []string{self}, Env: map[string]string{roleVariable: "stubborn"}, Dir: os.TempDir(),
	}, stdio.Deps{Log: slog.New(slog.DiscardHandler), Room: upstreamtest.Answers(), Sandbox: sandbox.Nothing(), Limiter: proclimit.NewWatching(), Agents: upstreamtest.NoAgents})
	if err != nil {
		os.Exit(8)
	}
	conn, _, err := srv.Open(context.Background(), ana, hello(1))
	if err != nil {
		os.Exit(8)
	}
	answer, err := conn.Request(context.Background(), toolCall(2, "info", nil), nil)
	if err != nil {
		os.Exit(8)
	}
	fmt.Println(resultOf(answer)["pid"])
	time.Sleep(lifetime)
}
