package servers_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// soakParameters returns the soak test's duration and its number of sessions, from SLUICE_SOAK and SLUICE_SESSIONS.
// Without these variables the values are small.
func soakParameters(t *testing.T) (long time.Duration, sessions int) {
	t.Helper()
	long, sessions = 8*time.Second, 60
	var err error
	if text := os.Getenv("SLUICE_SOAK"); text != "" {
		if long, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	if text := os.Getenv("SLUICE_SESSIONS"); text != "" {
		if sessions, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	return long, sessions
}

const (
	// phases is the number of phases in which the failing servers are called. Each of them follows a phase in which
	// these servers are not called.
	phases = 4
	// callPause is a session's average pause between two calls.
	callPause = 4 * time.Second
)

// One server hangs, and another stops and restarts every second. Neither of them may affect the same callers' sessions
// with working servers. The test logs the response times with and without calls to the failing servers, and the
// resources that the mesh uses (`make stress RUN=soak`).
func TestSoak_FailingServersDoNotAffectOthers(t *testing.T) {
	t.Parallel()
	long, sessions := soakParameters(t)
	collector := stack.NewCollector(t)
	s := stack.WriteConfig(t, stack.Options{
		Servers: workingAndFailingServers(t), Policy: "version: 1\ndefault: allow\n",
		Extra: fmt.Sprintf("session: {idle: 30m, max_per_principal: 1000}\ntelemetry: {otlp: %q}", collector.URL),
	})
	s.Env = append(s.Env, stack.FastMetricExport)
	p := stack.Start(t, s)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var mu sync.Mutex
	fails := false // guarded by mu, like took
	took := map[bool][]time.Duration{}
	var all sync.WaitGroup
	for i := range sessions {
		server, works := fmt.Sprintf("light%d", i%8), true
		switch i % 10 {
		case 8:
			server, works = "hangs", false
		case 9:
			server, works = "dies", false
		}
		token := []string{stack.AgentToken, stack.OtherToken}[i%2]
		c := stack.NewClient(t, p.MCP(server), token)
		all.Go(func() {
			for open := false; ; {
				select {
				case <-ctx.Done():
					return
				case <-time.After(callPause * time.Duration(50+(i*37)%100) / 100):
				}
				mu.Lock()
				with := fails
				mu.Unlock()
				if !works && !with {
					continue
				}
				if !open {
					if open = c.Open() == nil; !open && works {
						t.Errorf("a session with %s is not opened", server)
					}
					continue
				}
				begin := time.Now()
				resp, err := c.TryPost([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`))
				if !works || ctx.Err() != nil {
					continue
				}
				if err != nil || !strings.Contains(string(resp.Body), `"got"`) {
					t.Errorf("%s: %v %s", server, err, resp.Body)
				}
				mu.Lock()
				took[with] = append(took[with], time.Since(begin))
				mu.Unlock()
			}
		})
	}
	time.Sleep(2 * callPause) // long enough for all sessions to open
	mu.Lock()
	clear(took)
	mu.Unlock()
	for n := range 2 * phases {
		mu.Lock()
		fails = n%2 == 1
		mu.Unlock()
		time.Sleep(long / (2 * phases))
		t.Logf("phase %d, calls to failing servers: %t; %s, %d goroutines", n, n%2 == 1, processResources(t, p.PID()), collector.Counts("go.goroutine")["go.goroutine.count{}"])
	}
	end()
	all.Wait()
	for with, times := range took {
		slices.Sort(times)
		t.Logf("calls to failing servers: %t; %d calls, median %v, p99 %v", with, len(times), times[len(times)/2], times[len(times)*99/100])
	}
	if len(took[true]) == 0 || len(took[false]) == 0 {
		t.Error("nothing was measured")
	}
}

// workingAndFailingServers returns the configuration of eight working servers, one server that hangs when it is called,
// and one server that stops and restarts every second.
func workingAndFailingServers(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	for i := range 8 {
		fmt.Fprintf(&out, "  light%d: {http: {url: %q}}\n", i, startEchoServer(t, false, false))
	}
	hangs := startHTTPServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || strings.Contains(string(body), "tools/call") {
			<-r.Context().Done()
			return
		}
		answerEcho(w, string(body))
	})
	fmt.Fprintf(&out, "  hangs: {http: {url: %q}, timeout: 5s}\n  dies: {http: {url: %q}, timeout: 5s}\n", hangs, startDyingServer(t))
	return out.String()
}

func answerEcho(w http.ResponseWriter, body string) {
	said := echoResponses(body)
	if len(said) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, said[0])
}

// startDyingServer starts a server that dies every second and closes its connections, and returns the server's URL.
func startDyingServer(t *testing.T) string {
	t.Helper()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := lis.Addr().String()
	ctx, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(func() { end(); all.Wait() })
	all.Go(func() {
		for ; ctx.Err() == nil; lis, err = new(net.ListenConfig).Listen(ctx, "tcp", addr) {
			if err == nil {
				server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if body, err := io.ReadAll(r.Body); err == nil {
						answerEcho(w, string(body))
					}
				})}
				dies := time.AfterFunc(500*time.Millisecond, func() { _ = server.Close() })
				_ = server.Serve(lis) // Serve returns when the server dies
				dies.Stop()
			}
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	})
	return "http://" + addr
}

// processResources returns a description of a process's resident memory and number of descriptors.
func processResources(t *testing.T, pid int) string {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	status, failed := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || failed != nil || len(files) == 0 {
		return "no /proc"
	}
	for line := range strings.Lines(string(status)) {
		if memory, is := strings.CutPrefix(line, "VmRSS:"); is {
			return fmt.Sprintf("%s resident, %d descriptors", strings.TrimSpace(memory), len(files))
		}
	}
	return "/proc does not have the resident memory"
}
