//go:build unix

package stdio_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// Case U1. A progress notification is forwarded only to the request whose token it contains.
func TestRequest_ReceivesOnlyItsOwnProgress(t *testing.T) {
	t.Parallel()
	s := newRig(t, "good", nil).open(t, ana)
	req := request(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"unasked"}}`)
	if _, err := s.conn.Request(t.Context(), req, func(m []byte) { t.Errorf("%s came", m) }); err != nil {
		t.Fatal(err)
	}
}

// Case U1. Members that only the gateway may send are removed from answers.
func TestRequest_RemovesReservedMembersFromAnswers(t *testing.T) {
	t.Parallel()
	s := newRig(t, "good", nil).open(t, ana)
	answer, err := s.try(1, "forge", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"jsonrpc":"2.0","id":1,"result":{"ok":"yes","_meta":{"theirs":1}}}`
	if got := string(answer.Message.Raw); got != want {
		t.Errorf("the answer is %s, want %s", got, want)
	}
}

// Case U1. Messages that belong to no request are dropped. Only the first message that is dropped for each reason is
// logged.
func TestRequest_DropsMessagesThatBelongToNoRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", nil)
	s := r.open(t, ana)
	if diff := cmp.Diff(map[string]string{"ok": "yes"}, s.call(1, "noise", nil)); diff != "" {
		t.Errorf("the answer (-want +got):\n%s", diff)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if len(r.ToolsChanged()) == 0 {
		t.Error("the change of the tools is not signalled")
	}
	if want := "dropped=\"map[malformed:9 unknown_id:3]\""; !strings.Contains(r.log.String(), want) {
		t.Errorf("the log lacks %s:\n%s", want, r.log)
	}
}

// Case U1. The gateway itself answers a server's requests that no client can receive.
func TestRequest_GatewayAnswersServerRequests(t *testing.T) {
	t.Parallel()
	s := newRig(t, "good", nil).open(t, ana)
	s.call(1, "ask", nil)
	want := []string{
		`{"jsonrpc":"2.0","id":"p1","result":{}}`,
		`{"jsonrpc":"2.0","id":41,"error":{"code":-32601,"message":"No client accepts this request here."}}`,
	}
	var got []string
	eventually.Holds(t, "both requests are answered", func() bool {
		got = strings.Split(s.call(2, "replies", nil)["replies"], "\n")
		return len(got) == len(want)
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}

// Case U1. The process is terminated if it writes a line that is too long.
func TestRequest_LimitsLines(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", func(c *stdio.Config) { c.MaxMessage = 1 << 20 })
	s := r.open(t, ana)
	const envelope = len(`{"jsonrpc":"2.0","id":2,"result":{"x":""}}`)
	for _, size := range []int{1, 70_000, 1<<20 - envelope} {
		if got := len(s.call(1, "size", map[string]string{"bytes": fmt.Sprint(size)})["x"]); got != size {
			t.Errorf("%d bytes came, want %d", got, size)
		}
	}
	_, err := s.try(1, "size", map[string]string{"bytes": fmt.Sprint(1<<20 - envelope + 1)})
	if !errors.Is(err, upstream.ErrNoAnswer) || !strings.Contains(err.Error(), "a line of more than 1048576 bytes") {
		t.Errorf("the error is %v, want ErrNoAnswer for a long line", err)
	}
	s.call(2, "info", nil) // the next process answers this call
}

// Case S2. Lines of standard error are redacted, escaped and truncated before they are logged.
func TestLog_StandardErrorIsRedactedAndEscaped(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-correct-horse"
	r := newRig(t, "good", func(c *stdio.Config) { c.Env["API_KEY"] = secret })
	s := r.open(t, ana)
	s.call(1, "stderr", map[string]string{"text": "key " + secret + " \x1b[31mred\u2028\u202e level=ERROR\x00\n" + strings.Repeat("y", 5000) + "\n"})
	eventually.Holds(t, "both lines are logged", func() bool { return strings.Count(r.log.String(), "wrote to standard error") == 2 })
	got := r.log.String()
	if strings.Contains(got, secret) || !strings.Contains(got, "key [redacted]") {
		t.Errorf("the secret is not blotted out:\n%s", got)
	}
	if strings.ContainsAny(got, "\x1b\x00\u2028\u202e") {
		t.Errorf("control characters are in the log: %q", got)
	}
	if n := strings.Count(got, "y"); n > 1200 {
		t.Errorf("a long line left %d bytes in the log", n)
	}
	_, err := s.try(2, "die", nil)
	if err == nil || strings.Contains(err.Error(), secret) || len(err.Error()) > 3000 {
		t.Errorf("the error of the death is %q", err)
	}
}

// Case S1.
func TestRequest_RedactsSecretsInAnswers(t *testing.T) {
	t.Parallel()
	const secret, plain = "hunter2-correct-horse", "eu-central-1"
	r := newRig(t, "good", func(c *stdio.Config) {
		c.Env["API_KEY"], c.Env["REGION"], c.Secrets = secret, plain, []string{secret}
	})
	env := r.open(t, ana).call(1, "info", nil)["env"]
	if strings.Contains(env, secret) || !strings.Contains(env, "API_KEY=[redacted]") || !strings.Contains(env, "REGION="+plain) {
		t.Errorf("the answer says %q", env)
	}
}

// Case S1. If a process fails to start, the log contains its output. This is safe, because the process has not received
// a call whose arguments it could print. Lines that a process writes later are logged only at debug level.
func TestLog_ContainsStandardErrorBeforeTheFirstCall(t *testing.T) {
	t.Parallel()
	logged := func(r *rig, text string) (warned bool) {
		for line := range strings.Lines(r.log.String()) {
			warned = warned || strings.Contains(line, text) && !strings.Contains(line, "level=DEBUG")
		}
		return warned
	}
	early := newRig(t, "exits", nil)
	if _, _, err := early.Open(t.Context(), ana, hello(0)); err == nil {
		t.Fatal("it started")
	}
	if !logged(early, "no licence found") {
		t.Error("the log does not say why the server did not start")
	}
	late := newRig(t, "good", nil)
	if _, err := late.open(t, ana).try(1, "die", nil); err == nil {
		t.Fatal("it lives")
	}
	if logged(late, "out of cheese") {
		t.Error("the log quotes a process that had a call")
	}
}

// Case S2. If a process writes many lines to standard error, only some of the lines are logged.
func TestLog_StandardErrorIsRateLimited(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", nil)
	s := r.open(t, ana)
	var lines strings.Builder
	for n := range 5000 {
		fmt.Fprintf(&lines, "line %d\n", n)
	}
	begun := time.Now()
	s.call(1, "stderr", map[string]string{"text": lines.String()})
	if _, err := s.try(2, "die", nil); err == nil || !strings.Contains(err.Error(), `"line 4998" "line 4999" "out of cheese"`) {
		t.Errorf("the error is %v, want it to end with the last lines", err)
	}
	most := 20 * (2 + int(time.Since(begun).Seconds()))
	if got := strings.Count(r.log.String(), "wrote to standard error"); got > most {
		t.Errorf("%d lines were logged, want at most %d", got, most)
	}
}

// Case U1. The total size of the messages before an answer is limited.
func TestRequest_LimitsSizeOfMessagesBeforeAnswer(t *testing.T) {
	t.Parallel()
	const most = 64 << 20
	r := newRig(t, "good", nil)
	s := r.open(t, ana)
	bytes := 0
	_, err := s.conn.Request(t.Context(), toolCall(1, "flood-large", nil), func(m []byte) { bytes += len(m) })
	if !errors.Is(err, upstream.ErrNoAnswer) || !strings.Contains(err.Error(), "came before the answer") || bytes > most {
		t.Errorf("after %d bytes the error is %v, want ErrNoAnswer", bytes, err)
	}
	// The call has failed, but the process keeps running for a while, and for longer on a busy machine.
	if _, err = s.conn.Request(t.Context(), toolCall(2, "info", nil), nil); err == nil || !strings.Contains(err.Error(), "unexpected messages") {
		t.Errorf("the error is %v, want it to say that the process was ended", err)
	}
	s.call(3, "info", nil)
}

// Case U1. A request ends if too many messages arrive before its answer.
func TestRequest_LimitsNumberOfMessagesBeforeAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", nil)
	s := r.open(t, ana)
	seen := 0
	_, err := s.conn.Request(t.Context(), toolCall(1, "flood-own", nil), func([]byte) { seen++ })
	if !errors.Is(err, upstream.ErrNoAnswer) || seen > 100_000 {
		t.Errorf("after %d messages the error is %v, want ErrNoAnswer", seen, err)
	}
	// The call has failed, but the process keeps running for a while.
	if _, err = s.try(2, "info", nil); err == nil || !strings.Contains(err.Error(), "unexpected messages") {
		t.Errorf("the error is %v, want it to say that the process was ended", err)
	}
	s.call(3, "info", nil)

	if _, err = s.try(4, "flood", map[string]string{"token": "12345"}); !errors.Is(err, upstream.ErrNoAnswer) {
		t.Errorf("the error is %v, want ErrNoAnswer", err)
	}
	s.call(5, "info", nil)
}

// Case X3. Principals share a process. Late answers to one principal's abandoned calls do not cause the gateway to
// terminate the process.
func TestRequest_AbandonedCallsDoNotEndASharedProcess(t *testing.T) {
	r := newRig(t, "good", func(c *stdio.Config) { c.Shared = true })
	bens := r.open(t, ben)
	held := bens.begin(1, "hold", nil)
	for round := range 3 {
		anas := r.open(t, ana)
		var calling sync.WaitGroup
		for i := range 8 {
			calling.Go(func() {
				_, _ = anas.conn.Request(t.Context(), toolCall(100*round+i+10, "size", map[string]string{"bytes": strconv.Itoa(15 << 20)}), nil) // abandoned
			})
		}
		time.Sleep(30 * time.Millisecond) // some of the calls have reached the process
		_ = anas.conn.Close(t.Context())
		calling.Wait()
	}
	anas := r.open(t, ana) // this call is answered after all others
	anas.call(2, "line", nil)
	select {
	case got := <-held:
		t.Errorf("another principal's call: %v", got.err)
	default:
	}
}
