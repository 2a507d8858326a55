package notice_test

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/notice"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const (
	yes = approvalv1.Verdict_VERDICT_APPROVE
	no  = approvalv1.Verdict_VERDICT_DENY
)

var secret = "whsec_" + base64.StdEncoding.EncodeToString([]byte("a key of thirty-two bytes, no less"))

// endpoint receives webhooks and checks their signatures. The test sets the function that writes its responses.
type endpoint struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	answer  func(w http.ResponseWriter)
	headers []http.Header
	bodies  []string
}

func receive(t *testing.T) *endpoint {
	t.Helper()
	e := &endpoint{t: t}
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Close)
	return e
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the sender was killed
	}
	if verifier, err := standardwebhooks.NewWebhook(secret); err != nil || verifier.Verify(body, r.Header) != nil {
		e.t.Errorf("a request without a valid signature: %v", r.Header)
	}
	e.mu.Lock()
	e.headers, e.bodies = append(e.headers, r.Header), append(e.bodies, string(body))
	answer := e.answer
	e.mu.Unlock()
	if answer != nil {
		answer(w)
	}
}

func (e *endpoint) answers(fn func(w http.ResponseWriter)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = fn
}

func (e *endpoint) types(t *testing.T) (out []string) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range e.bodies {
		var v struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal([]byte(b), &v); err != nil {
			t.Fatal(err)
		}
		out = append(out, v.Type)
	}
	return out
}

func (e *endpoint) ids() (out []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range e.headers {
		out = append(out, h.Get("webhook-id"))
	}
	return out
}

func (e *endpoint) hook() notice.Webhook {
	return notice.Webhook{Target: notice.Target{Name: "hook"}, URL: e.URL, Secret: config.Secret(secret)}
}

func TestWebhook_SendsPendingAndEnd(t *testing.T) {
	t.Parallel()
	e := receive(t)
	s := start(t, notice.Config{Webhooks: []notice.Webhook{e.hook()}})
	s.ask(t, "a")
	s.decide(t, "a", no)
	eventually.Holds(t, "both are sent", func() bool { return s.count(t, "hook", store.Sent) == 2 })
	if diff := cmp.Diff([]string{"approval.pending", "approval.denied"}, e.types(t)); diff != "" {
		t.Errorf("types (-want +got):\n%s", diff)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(e.bodies[0]), &got); err != nil {
		t.Fatal(err)
	}
	data, _ := got["data"].(map[string]any)
	for key, want := range map[string]any{"id": "a", "state": "pending", "tool": "refund", "subject": "bot", "owner": "olga", "rule": "pay/refunds", "votesMissing": 1.0} {
		if data[key] != want {
			t.Errorf("%s is %v, want %v", key, data[key], want)
		}
	}
	if got["tenant"] != "acme" || got["timestamp"] == "" {
		t.Errorf("the event is %v", got)
	}
	if all := strings.Join(e.bodies, ""); strings.Contains(all, hidden) {
		t.Errorf("an argument was sent: %s", all)
	}
}

// If the response is not 2xx, the sender repeats the request with the same id and body. The sender does not follow
// redirects, and its log contains neither the secret nor the URL.
func TestWebhook_RetriesWithTheSameIdentifier(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"an error": func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		"gone":     func(w http.ResponseWriter) { w.WriteHeader(http.StatusGone) },
		"a redirect": func(w http.ResponseWriter) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusTemporaryRedirect)
		},
		"a long answer": func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway); _, _ = w.Write(make([]byte, 1<<20)) },
		"no answer":     func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := receive(t)
			e.answers(answer)
			s := start(t, notice.Config{Webhooks: []notice.Webhook{e.hook()}})
			s.ask(t, "a")
			eventually.Holds(t, "a first attempt", func() bool { return len(e.ids()) == 1 })
			e.answers(nil)
			eventually.Holds(t, "it is sent", func() bool { return s.count(t, "hook", store.Sent) == 1 })
			if diff := cmp.Diff([]string{"a-1-hook", "a-1-hook"}, e.ids()); diff != "" {
				t.Errorf("ids (-want +got):\n%s", diff)
			}
			if e.bodies[0] != e.bodies[1] {
				t.Errorf("the bodies differ: %s, then %s", e.bodies[0], e.bodies[1])
			}
			if log := s.log.String(); !strings.Contains(log, "an attempt to send a notice failed") || strings.Contains(log, secret) || strings.Contains(log, e.URL) {
				t.Errorf("the log says %s", log)
			}
		})
	}
}

// A sender is killed during a request. After the lease, the next sender sends the notice again with the same id.
func TestWebhook_IsSentAgainAfterAKilledSender(t *testing.T) {
	t.Parallel()
	e, hang := receive(t), make(chan struct{})
	e.answers(func(http.ResponseWriter) { <-hang })
	s := start(t, notice.Config{Webhooks: []notice.Webhook{e.hook()}})
	s.ask(t, "a")
	eventually.Holds(t, "a first attempt", func() bool { return len(e.ids()) == 1 })
	s.kill(t)
	close(hang)
	if n := s.count(t, "hook", store.Sent); n != 0 {
		t.Fatalf("%d were sent", n)
	}
	s.advanceClock(2 * time.Minute) // after the lease
	s.run(t)
	eventually.Holds(t, "it is sent", func() bool { return s.count(t, "hook", store.Sent) == 1 })
	if diff := cmp.Diff([]string{"a-1-hook", "a-1-hook"}, e.ids()); diff != "" {
		t.Errorf("ids (-want +got):\n%s", diff)
	}
}

func TestWebhook_IsGivenUpAfterADay(t *testing.T) {
	t.Parallel()
	e := receive(t)
	e.answers(func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) })
	s := start(t, notice.Config{Webhooks: []notice.Webhook{e.hook()}})
	s.ask(t, "a")
	eventually.Holds(t, "a first attempt", func() bool { return strings.Contains(s.log.String(), "an attempt to send a notice failed") })
	if n := s.count(t, "hook", store.GivenUp); n != 0 {
		t.Fatal("the notice was given up after the first attempt")
	}
	s.advanceClock(25 * time.Hour) // by then the approval has expired too
	eventually.Holds(t, "both are over", func() bool { return s.count(t, "hook", store.GivenUp) == 1 })
	eventually.Holds(t, "the log says so", func() bool { return strings.Contains(s.log.String(), "given_up_lately=1") })
	e.answers(nil)
	eventually.Holds(t, "the end is sent", func() bool { return s.count(t, "hook", store.Sent) == 1 })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.givenUp != 1 {
		t.Errorf("%d notices were counted, want 1", s.givenUp)
	}
	if got := e.types(t); got[len(got)-1] != "approval.expired" {
		t.Errorf("sent %v", got)
	}
}

func TestWebhook_EscalatesOnlyAPendingApproval(t *testing.T) {
	t.Parallel()
	e := receive(t)
	hook := e.hook()
	hook.After = 0.5
	s := start(t, notice.Config{Webhooks: []notice.Webhook{hook}})
	s.ask(t, "decided")
	s.ask(t, "open")
	s.decide(t, "decided", yes)
	s.advanceClock(31 * time.Minute)
	eventually.Holds(t, "one is sent", func() bool { return s.count(t, "hook", store.Sent) == 1 && s.count(t, "hook", store.Obsolete) == 1 })
	if diff := cmp.Diff([]string{"open-1-hook"}, e.ids()); diff != "" {
		t.Errorf("ids (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"approval.escalated"}, e.types(t)); diff != "" {
		t.Errorf("types (-want +got):\n%s", diff)
	}
}

func TestWebhook_ValidateChecksEachField(t *testing.T) {
	t.Parallel()
	good := notice.Webhook{Target: notice.Target{Name: "a"}, URL: "https://example.com/hook", Secret: config.Secret(secret)}
	for name, tt := range map[string]struct {
		change func(*notice.Webhook)
		ok     bool
	}{
		"good":                {func(*notice.Webhook) {}, true},
		"http to loopback":    {func(w *notice.Webhook) { w.URL = "http://127.0.0.1:1/x" }, true},
		"http":                {func(w *notice.Webhook) { w.URL = "http://example.com" }, false},
		"a user in the URL":   {func(w *notice.Webhook) { w.URL = "https://me:geheim@example.com" }, false},
		"no URL":              {func(w *notice.Webhook) { w.URL = "geheim" }, false},
		"no secret":           {func(w *notice.Webhook) { w.Secret = "" }, false},
		"a short secret":      {func(w *notice.Webhook) { w.Secret = "whsec_Z2VoZWlt" }, false},
		"no base64":           {func(w *notice.Webhook) { w.Secret = "whsec_geheim!geheim!geheim!geheim!geheim!" }, false},
		"no name":             {func(w *notice.Webhook) { w.Name = "" }, false},
		"a name with a space": {func(w *notice.Webhook) { w.Name = "my hook" }, false},
		"all of the time":     {func(w *notice.Webhook) { w.After = 1 }, false},
		"before its time":     {func(w *notice.Webhook) { w.After = -0.1 }, false},
		"not a number":        {func(w *notice.Webhook) { w.After = math.NaN() }, false},
	} {
		w := good
		tt.change(&w)
		cfg := notice.Config{Webhooks: []notice.Webhook{w}}
		err := cfg.Validate()
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: the error contains the secret: %v", name, err)
		}
	}
	twice := notice.Config{Webhooks: []notice.Webhook{good, good}}
	if err := twice.Validate(); err == nil || !strings.Contains(err.Error(), "two channels have the name a") {
		t.Errorf("two channels with one name: %v", err)
	}
}
