//go:build unix

package stdio_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

func TestOpen_InitializesAProcessOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", nil)
	first := r.open(t, ana)
	second, answer, err := r.Open(t.Context(), ana, hello("next"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(answer.Message.Raw), `{"jsonrpc":"2.0","id":"next","result":{"protocolVersion":"2024-11-05",`; !strings.HasPrefix(got, want) {
		t.Errorf("the second session's answer is %s, want %s...", got, want)
	}
	for _, s := range []session{first, {t, second}} {
		s.notify(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	}
	got := first.call(1, "info", nil)
	if got["inits"] != "1" || got["ready"] != "1" {
		t.Errorf("the process got initialize %s times and notifications/initialized %s times, want once each", got["inits"], got["ready"])
	}
	if want := `{"sampling":{},"roots":{"listChanged":true}}`; got["capabilities"] != want {
		t.Errorf("the process was promised %s, want %s", got["capabilities"], want)
	}
}

// A process can send requests to the client of its only session while that session has a request in flight. If the
// process has several sessions, its requests are refused. A shared process does not receive the clients' capabilities.
func TestRequest_ServerRequestsReachTheOnlySession(t *testing.T) {
	t.Parallel()
	const asks = `{"jsonrpc":"2.0","id":41,"method":"sampling/createMessage","params":{}}`
	for name, tt := range map[string]struct {
		shared bool
		others int
		want   []string
		reply  string
	}{
		"one session":      {false, 0, []string{asks}, `{"jsonrpc":"2.0","id":41,"result":{"n":1.50}}`},
		"two":              {false, 1, nil, `{"jsonrpc":"2.0","id":41,"error":{"code":-32601,"message":"No client accepts this request here."}}`},
		"a shared process": {true, 0, nil, `{"jsonrpc":"2.0","id":41,"error":{"code":-32601,"message":"No client accepts this request here."}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "good", func(c *stdio.Config) { c.Shared = tt.shared })
			s := r.open(t, ana)
			for range tt.others {
				r.open(t, ana)
			}
			if got := s.call(0, "info", nil)["capabilities"]; (got == "{}") != tt.shared {
				t.Errorf("the process was promised %s", got)
			}
			var got []string
			_, err := s.conn.Request(t.Context(), toolCall(1, "ask", nil), func(m []byte) { got = append(got, string(m)) })
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Fatalf("%v, asked (-want +got):\n%s", err, diff)
			}
			if len(got) > 0 {
				s.notify(tt.reply)
			}
			eventually.Holds(t, "the process has its answers", func() bool {
				return strings.Contains(s.call(2, "replies", nil)["replies"], tt.reply)
			})
		})
	}
}

func TestRequest_AnswersReachTheirSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", nil)
	one, two := r.open(t, ana), r.open(t, ana)
	first := one.begin(7, "hold", map[string]string{"key": "first"})
	second := two.begin(7, "hold", map[string]string{"key": "second"})
	// The server must have received both calls before it is asked to answer them.
	eventually.Holds(t, "both calls are held", func() bool { return one.call(8, "info", nil)["held"] == "first second" })
	two.call("x", "hold", map[string]string{"key": "now"})
	for want, done := range map[string]<-chan outcome{"first": first, "second": second} {
		got := <-done
		if got.err != nil {
			t.Fatal(got.err)
		}
		if id := string(got.Message.ID.Of(got.Message.Raw)); id != "7" || resultOf(got.Answer)["key"] != want {
			t.Errorf("the answer is %s, want that to 7, %s", got.Message.Raw, want)
		}
	}
}

func TestRequest_ProgressReachesItsRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", nil)
	type result struct {
		key    string
		events []string
		err    error
	}
	results := make(chan result)
	for _, key := range []string{"first", "second"} {
		s := r.open(t, ana)
		go func() {
			got := result{key: key}
			_, got.err = s.conn.Request(t.Context(), toolCall(1, "progress", map[string]string{"key": key}), func(m []byte) {
				if strings.Contains(string(m), "notifications/progress") {
					got.events = append(got.events, string(m))
				}
			})
			results <- got
		}()
	}
	for range 2 {
		got := <-results
		if got.err != nil {
			t.Fatal(got.err)
		}
		var want []string
		for n := range 3 {
			want = append(want, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"mine","progress":%d,"message":%q,"_meta":{}}}`, n+1, got.key))
		}
		if diff := cmp.Diff(want, got.events); diff != "" {
			t.Errorf("progress of %s (-want +got):\n%s", got.key, diff)
		}
	}
}

func TestRequest_LogMessageReachesTheOnlyRequest(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]bool{"of the principal": false, "but not of a shared server": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newRig(t, "good", func(c *stdio.Config) { c.Shared = shared }).open(t, ana)
			logged := 0
			_, err := s.conn.Request(t.Context(), toolCall(1, "progress", nil), func(m []byte) {
				if strings.Contains(string(m), `"data":"hello"`) {
					logged++
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			want := 1
			if shared {
				want = 0
			}
			if logged != want {
				t.Errorf("%d log messages came, want %d", logged, want)
			}
		})
	}
}

func TestNotify_CancelsOnlyRequestsOfTheSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", nil)
	one, two := r.open(t, ana), r.open(t, ana)
	running := one.begin(7, "hold", map[string]string{"key": "first"})
	var sent string // the id that the process receives
	eventually.Holds(t, "the call is held", func() bool { sent = two.call(1, "info", nil)["first"]; return sent != "" })

	cancel := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"reason":"bored","requestId":7}}`
	two.notify(cancel)
	if got := two.call(2, "info", nil)["cancelled"]; got != "" {
		t.Fatalf("another session's request was cancelled: %s", got)
	}
	one.notify(cancel)
	if got := two.call(3, "info", nil)["cancelled"]; got != sent {
		t.Errorf("the process was told to cancel %q, want %q", got, sent)
	}
	if got := <-running; !errors.Is(got.err, upstream.ErrNoAnswer) {
		t.Errorf("the cancelled request ended with %v, want ErrNoAnswer", got.err)
	}
	if got := two.call(4, "info", nil)["cancelled"]; got != sent {
		t.Errorf("the process was told to cancel %q, want %q, once", got, sent)
	}
}

func TestRequest_IsSentAsOneLine(t *testing.T) {
	t.Parallel()
	s := newRig(t, "good", nil).open(t, ana)
	body := "{\"jsonrpc\":\"2.0\",\r\n\"id\":5,\"method\":\"tools/call\",\"params\":{\"name\":\"line\",\"arguments\":{\"a\":\"\u2028null\u2029\u0085é\",\n\"b\":\n" +
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"die"}}` + "\n}}}\n"
	req := request(body)
	before := slices.Clone(req.Body())
	answer, err := s.conn.Request(t.Context(), req, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := resultOf(answer)["line"]
	want := strings.NewReplacer("\r", " ", "\n", " ", "\u2028", `\u2028`, "\u2029", `\u2029`, "\u0085", `\u0085`, `"id":5`, `"id":2`).Replace(body)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the line (-want +got):\n%s", diff)
	}
	if !slices.Equal(before, req.Body()) {
		t.Error("the request's bytes were changed")
	}
}

func TestProcess_HasOnlyConfiguredEnvironment(t *testing.T) {
	t.Setenv("SLUICE_CANARY", "must stay here")
	r := newRig(t, "good", nil)
	s := r.open(t, ana)
	got := s.call(1, "info", nil)
	env := strings.Split(got["env"], "\n")
	slices.Sort(env)
	want := []string{roleVariable + "=good", "HOME=" + got["dir"], "PATH=/usr/bin:/bin"}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if !strings.HasSuffix(got["args"], " -an argument; echo") {
		t.Errorf("the arguments are %q: something read them on the way", got["args"])
	}

	dir := t.TempDir()
	fixed := newRig(t, "good", func(c *stdio.Config) { c.Dir, c.WorkRoot, c.Path = dir, "", "" })
	got = fixed.open(t, ana).call(1, "info", nil)
	if got["dir"] != dir || got["env"] != roleVariable+"=good\nHOME=/nowhere" && got["env"] != "HOME=/nowhere\n"+roleVariable+"=good" {
		t.Errorf("with a folder of its own: folder %q, environment %q", got["dir"], got["env"])
	}
}

func TestOpen_PrincipalsHaveSeparateProcesses(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", nil)
	infos := map[string]map[string]string{}
	for name, key := range map[string]principal.Key{
		"ana": ana, "ben": ben,
		"another tenant's ana": {Tenant: "other", Subject: "ana"},
		"names run together":   {Tenant: "defaulta", Subject: "na"},
	} {
		infos[name] = r.open(t, key).call(1, "info", nil)
	}
	for _, key := range []string{"pid", "dir"} {
		seen := map[string]bool{}
		for name, info := range infos {
			if seen[info[key]] {
				t.Errorf("%s has the %s of another", name, key)
			}
			seen[info[key]] = true
			if key == "dir" && filepath.Dir(info[key]) != filepath.Join(r.root, "fake") {
				t.Errorf("%s works in %s, which is not below %s", name, info[key], r.root)
			}
		}
	}

	shared := newRig(t, "good", func(c *stdio.Config) { c.Shared = true })
	if one, two := shared.open(t, ana).call(1, "info", nil), shared.open(t, ben).call(1, "info", nil); one["pid"] != two["pid"] {
		t.Error("a shared server has two processes")
	}
}

func TestOpen_RequiresPrincipalAndInitialize(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", func(c *stdio.Config) { c.MaxProcesses = 1 })
	for name, open := range map[string]func() error{
		"no principal": func() error { _, _, err := r.Open(t.Context(), principal.Key{}, hello(1)); return err },
		"no initialize": func() error {
			_, _, err := r.Open(t.Context(), ana, toolCall(1, "info", nil))
			return err
		},
		"not a message": func() error {
			_, _, err := r.Open(t.Context(), ana, upstream.Request{})
			return err
		},
		"too many processes": func() error {
			r.open(t, ana)
			_, _, err := r.Open(t.Context(), ben, hello(1))
			return err
		},
	} {
		if err := open(); !errors.Is(err, upstream.ErrNeverSent) {
			t.Errorf("%s: the error is %v, want ErrNeverSent", name, err)
		}
	}
}

func TestRequest_RefusesOtherMessages(t *testing.T) {
	t.Parallel()
	s := newRig(t, "good", nil).open(t, ana)
	for name, body := range map[string]string{
		"a notification":     `{"jsonrpc":"2.0","method":"notifications/x"}`,
		"another initialize": string(hello(1).Body()),
		"a response":         `{"jsonrpc":"2.0","id":1,"result":{}}`,
	} {
		if _, err := s.conn.Request(t.Context(), request(body), nil); !errors.Is(err, upstream.ErrNeverSent) {
			t.Errorf("%s: the error is %v, want ErrNeverSent", name, err)
		}
	}
	if err := s.conn.Notify(t.Context(), toolCall(1, "info", nil)); !errors.Is(err, upstream.ErrNeverSent) {
		t.Errorf("a request as a notification: the error is %v, want ErrNeverSent", err)
	}
}

func TestRequest_ErrorSaysWhetherItWasSent(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", nil)
	s := r.open(t, ana)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.conn.Request(short, toolCall(1, "silence", nil), nil); !errors.Is(err, upstream.ErrTimeout) {
		t.Errorf("no answer in time: the error is %v, want ErrTimeout", err)
	}
	eventually.Holds(t, "the process is told", func() bool { return s.call(2, "info", nil)["cancelled"] == "2" })
	for range 20 { // repeated, because the outcome must not depend on chance
		if _, err := s.conn.Request(short, toolCall(3, "info", nil), nil); !errors.Is(err, upstream.ErrNeverSent) {
			t.Fatalf("too late to begin with: the error is %v, want ErrNeverSent", err)
		}
	}

	running := s.begin(4, "hold", map[string]string{"key": "first"})
	other := r.open(t, ana)
	eventually.Holds(t, "the call is held", func() bool { return other.call(1, "info", nil)["held"] == "first" })
	for range 2 {
		if err := s.conn.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-running; !errors.Is(got.err, upstream.ErrNoAnswer) {
		t.Errorf("session closed meanwhile: the error is %v, want ErrNoAnswer", got.err)
	}
	if _, err := s.try(5, "info", nil); !errors.Is(err, upstream.ErrNeverSent) {
		t.Errorf("session closed before: the error is %v, want ErrNeverSent", err)
	}
	other.call(2, "info", nil)
}

func TestRequest_ServesManySessionsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", func(c *stdio.Config) { c.IdleTimeout = time.Minute })
	var wg sync.WaitGroup
	for n := range 16 {
		wg.Go(func() {
			for range 4 {
				conn, _, err := r.Open(t.Context(), ana, hello(0))
				if err != nil {
					t.Error(err)
					return
				}
				for id := range 8 {
					key := fmt.Sprint(n)
					answer, err := conn.Request(t.Context(), toolCall(id, "progress", map[string]string{"key": key}), func(m []byte) {
						if strings.Contains(string(m), "/progress") && !strings.Contains(string(m), `"message":"`+key+`"`) {
							t.Errorf("session %s saw %s", key, m)
						}
					})
					if err != nil || resultOf(answer)["key"] != key {
						t.Errorf("session %s got %v, %v", key, answer, err)
					}
				}
				if err := conn.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if starts := strings.Count(r.log.String(), "server process started"); starts != 1 {
		t.Errorf("%d processes were started, want 1", starts)
	}
}
