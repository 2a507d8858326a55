//go:build unix

package stdio_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// client describes the client in requests that belong to no session.
var client = &upstream.Client{Name: "c", Version: "2"}

// discover opens a connection without a session.
func (r *rig) discover(t *testing.T, key principal.Key) (upstream.Conn, upstream.Answer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return r.Open(ctx, key, upstream.Discover(client).Request("", nil))
}

// A server refuses initialize, and the gateway detects that the server supports only revision 2026-07-28. After that,
// the gateway sends only server/discover to new processes of this server.
func TestOpen_ServerWithoutSessionsIsGreetedWithDiscover(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]bool{"a session first": true, "without one first": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "modern", nil)
			refused := func() {
				t.Helper()
				conn, answer, err := r.Open(t.Context(), ana, hello(7))
				if conn != nil || err == nil || !answer.IsUnknownRequest() || string(answer.Message.ID.Of(answer.Message.Raw)) != "7" {
					t.Fatalf("a session is %v, %v, %v", conn, answer, err)
				}
			}
			if first {
				refused()
			}
			conn, answer, err := r.discover(t, ana)
			if err != nil || !strings.Contains(string(answer.Message.Raw), `"supportedVersions":["2026-07-28"]`) {
				t.Fatalf("greeted: %v, %v", answer, err)
			}
			refused()
			s := session{t, conn}
			info := s.call(1, "info", nil)
			if info["inits"] != "1" || info["discovered"] != "1" || info["ready"] != "0" {
				t.Errorf("it was greeted %s and %s times, and got notifications/initialized %s times", info["inits"], info["discovered"], info["ready"])
			}
			if got := s.call(2, "ask", nil); got["ok"] != "yes" {
				t.Errorf("asks: %v", got)
			}
			eventually.Holds(t, "what it asks of a client is refused", func() bool {
				return strings.Contains(s.call(3, "replies", nil)["replies"], `"id":41,"error"`)
			})
			if _, err := s.try(4, "die", nil); !errors.Is(err, upstream.ErrNoAnswer) {
				t.Fatalf("died: %v", err)
			}
			if info := s.call(5, "info", nil); info["inits"] != "0" || info["discovered"] != "1" {
				t.Errorf("the next process was greeted %s and %s times", info["inits"], info["discovered"])
			}
			ben, _, err := r.discover(t, ben)
			if err != nil {
				t.Fatal(err)
			}
			if other := (session{t, ben}).call(1, "info", nil); other["inits"] != "0" || other["discovered"] != "1" || other["pid"] == info["pid"] {
				t.Errorf("another's process is %s, and was greeted %s and %s times", other["pid"], other["inits"], other["discovered"])
			}
		})
	}
}

// A server's first process has shown that the server uses sessions. After that, the gateway starts no process for a
// client that uses no sessions.
func TestOpen_ServerWithSessionsStartsNoProcessForDiscover(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]bool{"known": true, "not known": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "good", func(c *stdio.Config) { c.MaxProcesses = 1 })
			if first {
				r.open(t, ana)
			}
			for range 3 {
				if conn, answer, err := r.discover(t, ana); conn != nil || answer.Message != nil || !errors.Is(err, upstream.ErrRevision) {
					t.Errorf("without a session it is %v, %v, %v", conn, answer, err)
				}
			}
			if got := r.open(t, ana).call(1, "info", nil); got["inits"] != "1" || got["discovered"] != "0" {
				t.Errorf("it was greeted %s and %s times", got["inits"], got["discovered"])
			}
		})
	}
}

// A subscription's notifications contain the subscription id that the client has chosen. They are sent only to that
// client.
func TestRequest_SubscriptionReceivesItsNotifications(t *testing.T) {
	t.Parallel()
	r := newRig(t, "modern", nil)
	conn, _, err := r.discover(t, ana)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	heard := make(chan string, 9)
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Request(ctx, upstream.Subscribe([]byte(`"mine"`), client, upstream.Wanted{Tools: true, Prompts: true}).Request("", nil), func(m []byte) { heard <- string(m) })
		ended <- err
	}()
	var got []string
	for range 3 {
		got = append(got, <-heard)
	}
	want := []string{}
	for _, method := range []string{"subscriptions/acknowledged", "tools/list_changed", "prompts/list_changed"} {
		want = append(want, `{"jsonrpc":"2.0","method":"notifications/`+method+`","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"mine"}}}`)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	<-r.ToolsChanged()
	cancel()
	if err := <-ended; !errors.Is(err, upstream.ErrNoAnswer) {
		t.Errorf("ended with %v", err)
	}
	s := session{t, conn}
	if got := s.call(1, "info", nil)["cancelled"]; got == "" {
		t.Error("the server did not get the cancellation")
	}
	if len(heard) != 0 {
		t.Errorf("it also got %q", <-heard)
	}
}

// A server switches from revisions that use sessions to revision 2026-07-28, or back. Open connections end, new
// connections use the new revisions, and other callers' processes are not affected.
func TestOpen_ServerMayChangeItsProtocolFamily(t *testing.T) {
	t.Parallel()
	r := newRig(t, "changes", nil)
	before := r.open(t, ana)
	file := filepath.Join(before.call(1, "info", nil)["dir"], "modern")
	dies := func(s session) {
		t.Helper()
		if _, err := s.try(2, "die", nil); !errors.Is(err, upstream.ErrNoAnswer) {
			t.Fatalf("died: %v", err)
		}
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dies(before)
	if _, err := before.try(3, "info", nil); !errors.Is(err, upstream.ErrClosed) {
		t.Errorf("a session with a program that has none any more: %v", err)
	}
	if conn, answer, err := r.Open(t.Context(), ana, hello(4)); conn != nil || err == nil || !answer.IsUnknownRequest() {
		t.Errorf("another session is %v, %v, %v", conn, answer, err)
	}
	conn, _, err := r.discover(t, ana)
	if err != nil {
		t.Fatal(err)
	}
	now := session{t, conn}
	if got := now.call(5, "info", nil); got["discovered"] != "1" {
		t.Errorf("it was discovered %s times", got["discovered"])
	}
	if got := r.open(t, ben).call(1, "info", nil); got["inits"] != "1" || got["ready"] != "1" {
		t.Errorf("another's program was initialized %s times", got["inits"])
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	dies(now)
	if _, err := now.try(6, "info", nil); !errors.Is(err, upstream.ErrClosed) {
		t.Errorf("without a session, with a program that wants one: %v", err)
	}
	if got := r.open(t, ana).call(7, "info", nil); got["ready"] != "1" {
		t.Errorf("a session again: %v", got)
	}
}
