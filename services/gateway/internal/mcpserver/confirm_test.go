package mcpserver_test

import (
	"bufio"
	"context"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const attended = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"patient one","version":"1"}}}`

const payCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay"}}`

func newConfirmGateway(t *testing.T) *testGateway {
	t.Helper()
	w := newTestGateway(t)
	w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL, Approval: &policyv1.ApprovalTerms{Quorum: 1, SelfConfirm: true}}
	waits := newWaitApproval(approvalv1.ApprovalState_APPROVAL_STATE_PENDING)
	waits.Terms = w.Policy.Decision.GetApproval()
	w.Approvals.Set(waits)
	w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
		return gatewaytest.Result(r, `{"tools":[{"name":"pay"}]}`), nil
	}
	return w
}

var asksPerson = regexp.MustCompile(`"id":"(sluice-[A-Z0-9]+)","method":"elicitation/create"`)

// callAndReadForm makes a call. It returns the id of the confirmation request that the client receives, and a function
// that reads the rest of the response.
func (w *testGateway) callAndReadForm(h http.Header) (id string, rest func() string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, "http://localhost/mcp/files", strings.NewReader(payCall))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header = http.Header{
		"Authorization": {"Bearer " + anaToken}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Mcp-Session-Id": h["Mcp-Session-Id"],
	}
	resp, err := w.client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	lines := bufio.NewScanner(resp.Body)
	for id == "" && lines.Scan() {
		if m := asksPerson.FindStringSubmatch(lines.Text()); m != nil {
			id = m[1]
		}
	}
	if id == "" {
		w.t.Fatal("no confirmation was sent")
	}
	return id, func() string {
		defer resp.Body.Close()
		var out strings.Builder
		for lines.Scan() {
			out.WriteString(lines.Text() + "\n")
		}
		return out.String()
	}
}

// Case A3. Only the session that received the confirmation request can answer it, and only once. Answers in other
// sessions, answers with other ids, and repeated answers are accepted with status 202 and ignored. If another caller
// uses the session, the gateway responds with status 404.
func TestConfirmationForm_IsAnsweredOnlyInItsSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newConfirmGateway(t)
		own, other := w.connectAs(attended), w.connectAs(attended)
		ben := http.Header{"Authorization": {"Bearer " + benToken}}
		ben.Set("Mcp-Session-Id", w.do("POST", "/mcp/files", attended, ben).header.Get("Mcp-Session-Id"))
		id, rest := w.callAndReadForm(own)
		say := func(h http.Header, id, result string) {
			t.Helper()
			if got := w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","id":`+id+`,"result":`+result+`}`, h); got.status != http.StatusAccepted || got.body != "" {
				t.Errorf("an answer got %d %s", got.status, got.body)
			}
			synctest.Wait()
		}
		const yes, no = `{"action":"accept","content":{"run":true}}`, `{"action":"decline"}`
		for _, h := range []http.Header{other, ben} {
			say(h, `"`+id+`"`, yes)
		}
		say(own, `1`, yes)
		say(own, `"sluice-"`, yes)
		if got := w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","id":"`+id+`","result":`+yes+`}`, http.Header{"Authorization": {"Bearer " + benToken}, "Mcp-Session-Id": own["Mcp-Session-Id"]}); got.status != http.StatusNotFound {
			t.Errorf("ben in ana's session: %d", got.status)
		}
		if n := len(w.Approvals.SelfVotes()); n != 0 {
			t.Fatalf("%d words were passed on", n)
		}
		say(own, `"`+id+`"`, no)
		say(own, `"`+id+`"`, yes)
		if votes := w.Approvals.SelfVotes(); len(votes) != 1 || votes[0].GetVerdict() != approvalv1.Verdict_VERDICT_DENY || votes[0].GetApprovalId() != "a-1" {
			t.Errorf("passed on %v", votes)
		}
		w.Approvals.Set(newWaitApproval(approvalv1.ApprovalState_APPROVAL_STATE_DENIED))
		if got := rest(); !strings.Contains(got, `"isError":true`) || strings.Contains(got, "notifications/cancelled") {
			t.Errorf("answered %s", got)
		}
	})
}

// The gateway stops holding a call while the call's user still sees the form. The client is notified that the
// confirmation is cancelled before it receives the answer to the call. A later answer to the form has no effect.
func TestConfirmationForm_IsCancelledWhenTheCallEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newConfirmGateway(t)
		h := w.connectAs(attended)
		begin := time.Now()
		id, rest := w.callAndReadForm(h)
		got := rest()
		withdrawn, answered := strings.Index(got, `"method":"notifications/cancelled","params":{"requestId":"`+id+`"`), strings.Index(got, `"isError":true`)
		if withdrawn < 0 || answered < withdrawn || time.Since(begin) != 35*time.Second {
			t.Errorf("after %v: %s", time.Since(begin), got)
		}
		if got := w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","id":"`+id+`","result":{"action":"accept","content":{"run":true}}}`, h); got.status != http.StatusAccepted || len(w.Approvals.SelfVotes()) != 0 {
			t.Errorf("%d, %d words", got.status, len(w.Approvals.SelfVotes()))
		}
	})
}

func attendedAs(name, version string) string {
	return strings.NewReplacer("patient one", name, `"version":"1"`, `"version":"`+version+`"`).Replace(attended)
}

// A client declares elicitation but never answers the form. Its call is refused when the gateway stops holding the
// call, or after 50 s if that is earlier. The client's next call is held without a form, even in another session. The
// gateway still sends forms to other versions of the client and to other principals.
func TestConfirmationForm_IsNotSentAgainToAClientThatNeverAnswers(t *testing.T) {
	t.Parallel()
	for name, held := range map[string]time.Duration{"patient one": 35 * time.Second, "hours": 50 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			w := newConfirmGateway(t)
			begin := time.Now()
			_, rest := w.callAndReadForm(w.connectAs(attendedAs(name, "1")))
			if got := rest(); time.Since(begin) != held || !strings.Contains(got, `"isError":true`) {
				t.Errorf("%s: after %v: %s", name, time.Since(begin), got)
			}
			if got := w.do("POST", "/mcp/files", payCall, w.connectAs(attendedAs(name, "1"))); strings.Contains(got.body, "elicitation/create") || !strings.Contains(got.body, `"isError":true`) {
				t.Errorf("%s: the next call got %s", name, got.body)
			}
			if _, rest = w.callAndReadForm(w.connectAs(attendedAs(name, "2"))); rest() == "" {
				t.Errorf("%s: another version got no answer", name)
			}
		})
	}
}

// The user answers a form after the gateway has refused the call because no answer arrived in time. From then on, the
// gateway sends forms to the client again, and holds the client's calls for as long as it is configured to, here two
// hours.
func TestConfirmationForm_IsSentAgainAfterALateAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newConfirmGateway(t)
		h := w.connectAs(attendedAs("hours", "1"))
		id, rest := w.callAndReadForm(h)
		rest()
		w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","id":"`+id+`","result":{"action":"decline"}}`, h)
		begin := time.Now()
		id, rest = w.callAndReadForm(h)
		rest()
		if id == "" || time.Since(begin) != 2*time.Hour || len(w.Approvals.SelfVotes()) != 0 {
			t.Errorf("the form %q was open for %v, with %d votes", id, time.Since(begin), len(w.Approvals.SelfVotes()))
		}
	})
}

// If the client cancels a held call, the gateway stops holding the call, and the call does not run even if it is
// approved later. A cancellation with another id or from another session does not affect the call.
func TestHeldCall_IsCancelledOnlyInItsSession(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		call, id string
		own      bool
		held     time.Duration
	}{
		"the call":           {payCall, `1`, true, 5 * time.Second},
		"the tool to wait":   {waitCall(`{"id":"a-1"}`), `1`, true, 5 * time.Second},
		"another call":       {payCall, `"1"`, true, 35 * time.Second},
		"of another session": {payCall, `1`, false, 35 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newConfirmGateway(t)
				own, other := w.connectAs(patient), w.connectAs(patient)
				by := other
				if tt.own {
					by = own
				}
				var cancels sync.WaitGroup
				defer cancels.Wait() // the response to the cancellation may arrive after the response to the call
				cancels.Go(func() {
					time.Sleep(5 * time.Second)
					w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+tt.id+`}}`, by)
				})
				begin := time.Now()
				got := w.do("POST", "/mcp/files", tt.call, own)
				if held := time.Since(begin); held != tt.held {
					t.Errorf("it was held for %v: %s", held, got.body)
				}
			})
		})
	}
}
