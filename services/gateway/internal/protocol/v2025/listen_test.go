package v2025_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// say makes the server send each event that it receives from the returned channel. The server sends the events on its
// streams.
func say(s *gatewaytest.Server) chan<- upstream.Event {
	events := make(chan upstream.Event)
	s.Listen = func(ctx context.Context, to upstream.Listener) error {
		to.Opened()
		for {
			select {
			case event := <-events:
				if err := to.Event(event); err != nil {
					return err
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return events
}

func logMessage(data string) upstream.Event {
	return upstream.Event{Message: []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + data + `"}}`)}
}

func isOver(s *gatewaytest.Stream) bool {
	synctest.Wait()
	return s.Ended()
}

func TestListen_IsRefusedWithoutAStreamForTheCaller(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, _ string) {
		g := gatewaytest.Start(t)
		say(g.Files())
		session := g.Connect(server)
		m := gatewaytest.Message{Server: server}.In(session).With("Accept", "text/event-stream")
		for name, tt := range map[string]struct {
			message gatewaytest.Message
			method  string
			exists  bool
			status  int
			code    string
		}{
			"no session":                {gatewaytest.Message{Server: server}.With("Accept", "text/event-stream"), "GET", false, 0, ""},
			"two sessions":              {m.With("Mcp-Session-Id", "a", "b"), "GET", false, 0, ""},
			"HEAD":                      {m, "HEAD", false, 0, ""},
			"a client without events":   {m.With("Accept", "application/json"), "GET", false, 0, ""},
			"an unknown session":        {m.With("Mcp-Session-Id", "x"), "GET", true, 404, "session_unknown"},
			"a session of another":      {m.From("ben"), "GET", true, 404, "session_unknown"},
			"an absent server":          {m.To("other"), "GET", true, 404, "tool_unknown"},
			"an event of no one":        {m.With("Last-Event-Id", "e"), "GET", true, 400, "header_mismatch"},
			"an empty event":            {m.With("Last-Event-Id", ""), "GET", true, 400, "header_mismatch"},
			"two events":                {m.With("Last-Event-Id", "a", "a"), "GET", true, 400, "header_mismatch"},
			"a stored answer of no one": {m.With("Last-Event-Id", "sluice-1-1"), "GET", true, 400, "header_mismatch"},
		} {
			got, exists := g.Listen(tt.message, tt.method).End()
			if exists != tt.exists || exists && (got.Status != tt.status || got.Code() != tt.code) {
				t.Errorf("%s: %t, %d %s", name, exists, got.Status, got.Text)
			}
		}
		for _, state := range g.Sessions.List(gatewaytest.Tenant) {
			if state.InFlight != 0 {
				t.Errorf("a session is in use by %d requests", state.InFlight)
			}
		}
	})
}

// At the URL for one server, a client can open a stream only if the policy allows it. At the URL for all servers, the
// policy service checks each message when a server sends it.
func TestListen_AtOneServerNeedsAccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		m := gatewaytest.Message{Server: "files"}.In(g.Connect("files"))
		if _, exists := g.Listen(m, http.MethodGet).End(); exists {
			t.Error("there is a stream, though the server has none")
		}
		say(g.Files())
		g.Policy.Change(func() { g.Policy.Access.CouldAllow = false })
		if _, exists := g.Listen(m, http.MethodGet).End(); exists {
			t.Error("there is a stream of a server that is not in reach")
		}
		all := g.Connect("")
		g.Policy.Change(func() { g.Policy.Access = nil })
		if got, exists := g.Listen(m, http.MethodGet).End(); !exists || got.Code() != "policy_unavailable" || got.Status != http.StatusServiceUnavailable {
			t.Errorf("without policy: %t, %d %s", exists, got.Status, got.Text)
		}
		stream := g.Listen(gatewaytest.Message{}.In(all), http.MethodGet)
		if isOver(stream) {
			reply, _ := stream.End()
			t.Errorf("at all servers: %d %s", reply.Status, reply.Text)
		}
		stream.HangUp()
	})
}

func TestListen_FailureOfTheServerIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		m := gatewaytest.Message{Server: "files"}.In(g.Connect("files"))
		g.Files().Listen = func(context.Context, upstream.Listener) error { return upstream.ErrNeverSent }
		if got, exists := g.Listen(m, http.MethodGet).End(); !exists || got.Code() != "upstream_unavailable" || got.Status != http.StatusServiceUnavailable {
			t.Errorf("%t, %d %s", exists, got.Status, got.Text)
		}
		g.Files().Listen = func(ctx context.Context, _ upstream.Listener) error { <-ctx.Done(); return ctx.Err() }
		stream := g.Listen(m, http.MethodGet)
		synctest.Wait()
		if err := g.Sessions.End(m.Header.Get("Mcp-Session-Id"), g.Sessions.List(gatewaytest.Tenant)[0].Key); err != nil {
			t.Fatal(err)
		}
		if got, exists := stream.End(); !exists || got.Code() != "session_unknown" {
			t.Errorf("a session that ends meanwhile: %t, %d %s", exists, got.Status, got.Text)
		}
	})
}

func TestListen_IsCountedAndLimited(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, _ string) {
		g := gatewaytest.Start(t)
		m := gatewaytest.Message{Server: server}.In(g.Connect(server)).With("Last-Event-Id", "e")
		for range 3 {
			g.Listen(m, http.MethodGet).End()
		}
		if passed := g.Passed(); passed["listen"] != 3 {
			t.Errorf("counted are %v", passed)
		}
		for g.Pipeline.CountExempt(pipeline.ExemptMessage{Principal: gatewaytest.Caller("ana").Principal, Method: "ping"}) == nil { // uses the whole quota
		}
		if got, _ := g.Listen(m, http.MethodGet).End(); got.Status != http.StatusTooManyRequests || got.Code() != "abuse_limited" {
			t.Errorf("%d %s", got.Status, got.Text)
		}
	})
}

// The session's stream contains only messages that the client may receive. The policy service evaluates each message.
func TestListen_ForwardsWhatTheClientMayReceive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		events := say(g.Files())
		stream := g.Listen(gatewaytest.Message{Server: "files"}.In(g.Connect("files")), http.MethodGet)
		one := logMessage("1")
		one.ID = "e1"
		events <- one
		if got := stream.Next(); got != string(one.Message) {
			t.Errorf("the client got %s", got)
		}
		if diff := cmp.Diff([]string{"id: e1", "event: message", "data: " + string(one.Message)}, stream.Lines()[:3]); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		events <- upstream.Event{Message: []byte(`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`)} // prompts/list is not allowed
		synctest.Wait()
		g.Policy.Change(func() { g.Policy.Access.CouldAllow = false })
		events <- logMessage("2")
		if got := stream.Next(); got != "" {
			t.Errorf("a caller without access got %s", got)
		}
		stream.End()
	})
}

func TestListen_EndsWithItsSessionAndItsToken(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, _ string) {
		g := gatewaytest.Start(t)
		say(g.Files())
		var revoked atomic.Bool
		m := gatewaytest.Message{Server: server, Caller: gatewaytest.Caller("ana")}.In(g.Connect(server))
		m.Caller.Credential = gatewaytest.RevokedWhen(revoked.Load)
		first := g.Listen(m, http.MethodGet)
		synctest.Wait()
		second := g.Listen(m, http.MethodGet)
		if !isOver(first) || isOver(second) {
			t.Error("the second stream did not replace the first")
		}
		if state := g.Sessions.List(gatewaytest.Tenant)[0]; state.InFlight != 0 {
			t.Errorf("the stream keeps the session in use: %d requests", state.InFlight)
		}
		time.Sleep(26 * time.Second)
		if lines := strings.Join(second.Lines(), "\n"); !strings.Contains(lines, ": alive") || isOver(second) {
			t.Errorf("an idle stream: %q", lines)
		}
		revoked.Store(true)
		time.Sleep(26 * time.Second)
		if !isOver(second) {
			t.Error("the stream outlives its token")
		}
		revoked.Store(false)
		third := g.Listen(m, http.MethodGet)
		synctest.Wait()
		if err := g.Sessions.End(m.Header.Get("Mcp-Session-Id"), g.Sessions.List(gatewaytest.Tenant)[0].Key); err != nil {
			t.Fatal(err)
		}
		if !isOver(third) {
			t.Error("the stream outlives its session")
		}
	})
}

// A session ends if the client neither sends requests nor has an open stream for an hour.
func TestListen_KeepsTheSessionUntilItEnds(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, _ string) {
		g := gatewaytest.Start(t)
		say(g.Files())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- g.Sessions.Run(ctx) }()
		stream := g.Listen(gatewaytest.Message{Server: server}.In(g.Connect(server)), http.MethodGet)
		time.Sleep(3 * time.Hour)
		if g.Sessions.Len() != 1 {
			t.Error("the session was ended while its client listens")
		}
		stream.HangUp()
		stream.End()
		time.Sleep(3 * time.Hour)
		if g.Sessions.Len() != 0 {
			t.Error("the session was not ended after its stream")
		}
		cancel()
		<-ended
	})
}

// A client can resume a stream only after an event that was sent on a stream of its own session.
func TestListen_ContinuesAfterAnEventOfTheSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		events := say(g.Files())
		var after []string
		listen := g.Files().Listen
		g.Files().Listen = func(ctx context.Context, to upstream.Listener) error {
			after = append(after, to.After)
			return listen(ctx, to)
		}
		m := gatewaytest.Message{Server: "files"}.In(g.Connect("files"))
		stream := g.Listen(m, http.MethodGet)
		event := logMessage("1")
		event.ID = "e1"
		events <- event
		stream.Next()
		stream.HangUp()
		stream.End()
		back := g.Listen(m.With("Last-Event-Id", "e1"), http.MethodGet)
		synctest.Wait()
		back.HangUp()
		back.End()
		if diff := cmp.Diff([]string{"", "e1"}, after); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		other := m.In(g.Connect("files")).With("Last-Event-Id", "e1")
		if got, _ := g.Listen(other, http.MethodGet).End(); got.Code() != "header_mismatch" {
			t.Errorf("another session continues: %d %s", got.Status, got.Text)
		}
	})
}

// lostCall makes a call and disconnects after the first of two messages. It returns the id of the last event that the
// client has received, and a channel. The call ends when the channel is closed.
func lostCall(t *testing.T, g *gatewaytest.Gateway, call gatewaytest.Message) (last string, answer chan struct{}) {
	t.Helper()
	answer = make(chan struct{})
	g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
		events([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`))
		<-answer
		events([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":2}}`))
		return gatewaytest.Result(r, `{"late":true}`), nil
	}
	stream := g.Stream(call)
	stream.Next()
	for _, line := range stream.Lines() {
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			last = id
		}
	}
	stream.HangUp()
	return last, answer
}

// Case N2. A client that has lost its connection can receive the rest of an answer, but only in its own session.
func TestListen_ContinuesTheStreamOfAnAnswer(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, prefix string) {
		g := gatewaytest.Start(t)
		session := g.Connect(server)
		last, answer := lostCall(t, g, gatewaytest.Call(prefix+"safe", "").To(server).In(session))
		m := gatewaytest.Message{Server: server, Caller: gatewaytest.Caller("ana")}.In(session).With("Last-Event-Id", last)
		back := g.Listen(m, http.MethodGet)
		synctest.Wait()
		for name, tt := range map[string]struct {
			message gatewaytest.Message
			code    string
		}{
			"another session":  {m.In(g.Connect(server)), "header_mismatch"},
			"another caller":   {m.From("ben"), "session_unknown"},
			"an event to come": {m.With("Last-Event-Id", strings.TrimSuffix(last, "1")+"9"), "header_mismatch"},
		} {
			if got, _ := g.Listen(tt.message, http.MethodGet).End(); got.Code() != tt.code {
				t.Errorf("%s: %d %s", name, got.Status, got.Text)
			}
		}
		stale := m
		stale.Caller.Stale = true
		if got, _ := g.Listen(stale, http.MethodGet).End(); got.Code() != "policy_unavailable" {
			t.Errorf("a stale token: %d %s", got.Status, got.Text)
		}
		close(answer)
		for _, want := range []string{`"progress":2`, `{"jsonrpc":"2.0","id":1,"result":{"late":true}}`, ""} {
			if got := back.Next(); !strings.Contains(got, want) || want == "" && got != "" {
				t.Errorf("the client got %q, want %s", got, want)
			}
		}
		back.End()
		if intents := g.Journal.Records(journal.KindIntent); len(intents) != 1 {
			t.Errorf("%d calls are on record", len(intents))
		}
	})
}

// Messages that the policy allowed when they were first sent may be sent again without another evaluation. If the
// caller has lost access meanwhile, they are not sent again.
func TestListen_StoredAnswerNeedsAccess(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, prefix string) {
		g := gatewaytest.Start(t)
		session := g.Connect(server)
		last, answer := lostCall(t, g, gatewaytest.Call(prefix+"safe", "").To(server).In(session))
		close(answer)
		synctest.Wait()
		g.Policy.Change(func() { g.Policy.Access = &policyv1.CheckServerResponse{HidesNone: true} })
		stream := g.Listen(gatewaytest.Message{Server: server}.In(session).With("Last-Event-Id", last), http.MethodGet)
		if got := stream.Next(); got != "" {
			t.Errorf("the client got %s", got)
		}
		stream.End()
	})
}
