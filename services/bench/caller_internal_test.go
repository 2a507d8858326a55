package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// newTestCaller returns a caller that is connected to a server with the handler h.
func newTestCaller(t *testing.T, h http.Handler, tool, mark string) *caller {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	at := endpoint{addr: strings.TrimPrefix(server.URL, "http://"), path: "/mcp"}
	sessions, err := openSessions(t.Context(), at, []string{"secret"}, tool)
	if err != nil {
		t.Fatal(err)
	}
	c := newCaller(at, sessions, mark)
	if err := c.connect(t.Context(), time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

func TestCaller_CallsTheEchoServer(t *testing.T) {
	t.Parallel()
	floor := func(t *testing.T) http.Handler {
		echo := httptest.NewServer(NewEcho())
		t.Cleanup(echo.Close)
		proxy, err := NewProxy(echo.URL)
		if err != nil {
			t.Fatal(err)
		}
		return proxy
	}
	for name, handler := range map[string]func(*testing.T) http.Handler{
		"itself":            func(*testing.T) http.Handler { return NewEcho() },
		"through the floor": floor,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newTestCaller(t, handler(t), toolAllowed, markEchoed)
			for range 3 {
				if err := c.call(); err != nil {
					t.Fatal(err)
				}
			}
			if want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"echo: hello"}],"isError":false}}`, firstID+2); string(c.body) != want {
				t.Errorf("the third answer is %s, want %s", c.body, want)
			}
		})
	}
}

func TestCaller_SendsTheRequestOfAClient(t *testing.T) {
	t.Parallel()
	var head http.Header
	var body []byte
	echo := NewEcho()
	c := newTestCaller(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if session := r.Header.Get("Mcp-Session-Id"); session != "" {
			head = r.Header
			body, _ = io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(body)))
		}
		echo.ServeHTTP(w, r)
	}), "other", markEchoed)
	if err := c.call(); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"Authorization": "Bearer secret", "Mcp-Session-Id": "session-1", "Mcp-Protocol-Version": protocolVersion,
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
	} {
		if got := head.Get(key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if want := `{"jsonrpc":"2.0","id":1000000000,"method":"tools/call","params":{"name":"other","arguments":{"text":"hello"}}}`; string(body) != want {
		t.Errorf("the body is %s, want %s", body, want)
	}
}

func TestCaller_RefusesWrongResponses(t *testing.T) {
	t.Parallel()
	right := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"echo: hello"}]}}`, firstID)
	for name, tc := range map[string]struct {
		status int
		body   string
		want   string
	}{
		"to another call":     {http.StatusOK, strings.Replace(right, "1000000000", "1000000001", 1), "is wrong"},
		"that refuses":        {http.StatusOK, strings.Replace(right, "echo: hello", "Denied by policy", 1), "is wrong"},
		"that is empty":       {http.StatusOK, "", "is wrong"},
		"with another status": {http.StatusNotFound, right, "the status is not 200"},
		"that is too long":    {http.StatusOK, right + strings.Repeat(" ", maxAnswer), "is longer than"},
		"without a length":    {0, right, "no Content-Length"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			echo := NewEcho()
			c := newTestCaller(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if !strings.Contains(string(body), "tools/call") {
					r.Body = io.NopCloser(strings.NewReader(string(body)))
					echo.ServeHTTP(w, r)
					return
				}
				if tc.status == 0 {
					w.(http.Flusher).Flush()
				} else {
					w.Header().Set("Content-Length", fmt.Sprint(len(tc.body)))
					w.WriteHeader(tc.status)
				}
				_, _ = io.WriteString(w, tc.body)
			}), toolAllowed, markEchoed)
			if err := c.call(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the call ended with %v, want %q", err, tc.want)
			}
		})
	}
}

func TestDrive_CallsForItsDuration(t *testing.T) {
	t.Parallel()
	echo := NewEcho()
	callers := []*caller{newTestCaller(t, echo, toolAllowed, markEchoed), newTestCaller(t, echo, toolAllowed, markEchoed)}
	taken, elapsed, err := drive(t.Context(), callers, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	made := (<-callers[0].sessions).next + (<-callers[1].sessions).next - 2*firstID
	if int64(len(taken)) != made || made < 2 || elapsed < 50*time.Millisecond {
		t.Errorf("%d calls were made and %d measured in %v", made, len(taken), elapsed)
	}
}

func TestDrive_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := newTestCaller(t, NewEcho(), toolAllowed, markEchoed)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	begin := time.Now()
	if _, _, err := drive(ctx, []*caller{c}, time.Minute); err == nil {
		t.Error("drive returned no error although its context ended")
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("drive returned after %v", took)
	}
}
