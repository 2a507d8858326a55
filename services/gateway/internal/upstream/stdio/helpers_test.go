//go:build unix

package stdio_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/proclimit"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

var (
	ana = principal.Key{Tenant: "default", Subject: "ana"}
	ben = principal.Key{Tenant: "default", Subject: "ben"}
)

// soon is much shorter than the timeout of a call in these tests, and much longer than the duration of a call. patience
// is the timeout for work that should take almost no time.
const (
	soon     = 5 * time.Second
	patience = 3 * time.Minute
)

// logbook is a log that can be read while entries are added.
type logbook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logbook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func newLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// limiter is shared by the servers of all tests, as in a gateway. It reads the table of all processes again and again,
// so many limiters would make the tests slow.
var limiter = sync.OnceValue(proclimit.NewWatching)

// rig is a server whose processes run this test binary.
type rig struct {
	upstream.Transport
	all  *limits.Budget
	log  *logbook
	root string
}

func newRig(t *testing.T, role string, edit func(*stdio.Config)) *rig {
	t.Helper()
	return newRigWith(t, role, edit, func(*stdio.Deps) {})
}

// newRigWith is like [newRig], and also changes the dependencies.
func newRigWith(t *testing.T, role string, edit func(*stdio.Config), editDeps func(*stdio.Deps)) *rig {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{all: upstreamtest.Answers(), log: &logbook{}, root: t.TempDir()}
	cfg := stdio.Config{
		Name: "fake", Command: []string{self, "-an", "argument; echo"},
		Env: map[string]string{roleVariable: role}, Path: "/usr/bin:/bin", Home: "/nowhere", WorkRoot: r.root,
	}
	if edit != nil {
		edit(&cfg)
	}
	log := slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	deps := stdio.Deps{
		Log: log, Room: r.all, Sandbox: sandbox.Nothing(), Limiter: limiter(), Agents: upstreamtest.NoAgents,
		Installer: func() (*sandbox.Sandbox, *sandbox.Sandbox, error) { return sandbox.Nothing(), sandbox.Nothing(), nil },
	}
	editDeps(&deps)
	server, err := stdio.New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	r.Transport = upstreamtest.Roomy{Transport: server, All: r.all}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", r.log)
		}
	})
	return r
}

type session struct {
	t    *testing.T
	conn upstream.Conn
}

func (r *rig) open(t *testing.T, key principal.Key) session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, answer, err := r.Open(ctx, key, hello(0))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(answer.Message.ID.Of(answer.Message.Raw)); got != "0" {
		t.Fatalf("the answer to initialize has the id %s, want 0", got)
	}
	return session{t, conn}
}

// call calls a tool and returns its result. The test fails if the call fails.
func (s session) call(id any, tool string, args map[string]string) map[string]string {
	s.t.Helper()
	answer, err := s.try(id, tool, args)
	if err != nil {
		s.t.Fatalf("call %s: %v", tool, err)
	}
	if got, want := string(answer.Message.ID.Of(answer.Message.Raw)), string(idOf(id)); got != want {
		s.t.Fatalf("the answer has the id %s, want %s", got, want)
	}
	return resultOf(answer)
}

func (s session) try(id any, tool string, args map[string]string) (upstream.Answer, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	return s.conn.Request(ctx, toolCall(id, tool, args), nil)
}

// begin starts a call to a tool without waiting for the answer.
func (s session) begin(id any, tool string, args map[string]string) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		answer, err := s.try(id, tool, args)
		done <- outcome{answer, err}
	}()
	return done
}

type outcome struct {
	upstream.Answer
	err error
}

func (s session) notify(body string) {
	s.t.Helper()
	if err := s.conn.Notify(s.t.Context(), request(body)); err != nil {
		s.t.Fatal(err)
	}
}

// request returns the request that the gateway creates for a message.
func request(body string) upstream.Request {
	m, err := jsonrpc.Parse([]byte(body), jsonrpc.DefaultLimits())
	if err != nil {
		panic(err)
	}
	return upstream.Request{Message: m}
}

func idOf(id any) []byte {
	raw, err := json.Marshal(id)
	if err != nil {
		panic(err)
	}
	return raw
}

func hello(id any) upstream.Request {
	return request(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"initialize","params":{"protocolVersion":"2025-11-25",`+
		`"capabilities":{"sampling":{},"roots":{"listChanged":true}},"clientInfo":{"name":"test","version":"1"}}}`, idOf(id)))
}

func toolCall(id any, tool string, args map[string]string) upstream.Request {
	raw, err := json.Marshal(args)
	if err != nil {
		panic(err)
	}
	return request(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"progressToken":"mine"}}}`,
		idOf(id), tool, raw))
}

// resultOf returns the members in the result of an answer.
func resultOf(a upstream.Answer) map[string]string {
	var result map[string]string
	if err := json.Unmarshal(a.Message.Result.Of(a.Message.Raw), &result); err != nil {
		panic(fmt.Sprintf("%s: %v", a.Message.Raw, err))
	}
	return result
}

// isAlive reports whether a process is running. A zombie does not count as running.
func isAlive(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// mustBeAlive fails the test if a process is not running. Without this check, a test could pass although the process
// never ran.
func mustBeAlive(t *testing.T, pid string) {
	t.Helper()
	if _, err := strconv.Atoi(pid); err != nil || !isAlive(pid) {
		t.Fatalf("process %q does not run", pid)
	}
}
