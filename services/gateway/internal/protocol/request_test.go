package protocol_test

import (
	"context"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/question"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/sse"
)

func TestCleanup_RunsInReverseOrderEvenIfAFunctionPanics(t *testing.T) {
	t.Parallel()
	var all protocol.Cleanup
	var order []int
	all.Add(func() { order = append(order, 1) })
	all.Add(func() { panic("oh") })
	all.Add(func() { order = append(order, 3) })
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is lost")
			}
		}()
		all.Run()
	}()
	if !slices.Equal(order, []int{3, 1}) {
		t.Errorf("the functions ran in the order %v", order)
	}
	all = nil
	all.Add(func() { order = nil })
	all.Run()
	order = []int{7}
	all.Run()
	if !slices.Equal(order, []int{7}) {
		t.Error("a function ran twice")
	}
}

// A response's body is stored in the request's memory, which is reused after the request has ended. The copy that Copy
// returns stays valid.
func TestCopy_KeepsTheBodyUpToItsLimit(t *testing.T) {
	t.Parallel()
	body := [][]byte{[]byte("ab"), []byte("c")}
	got := protocol.Copy(dispatch.Response{Body: body, Status: 404, ID: "d", Unrecorded: true})
	body[0][0] = 'x'
	if string(got.Joined) != "abc" || got.TooLarge || got.Body != nil || got.Status != 404 || got.ID != "d" || !got.Unrecorded {
		t.Errorf("%+v", got)
	}
	large := make([]byte, dispatch.MaxCallback)
	if got := protocol.Copy(dispatch.Response{Body: [][]byte{large}}); got.TooLarge || len(got.Joined) != len(large) {
		t.Errorf("the largest is too large: %t", got.TooLarge)
	}
	if got := protocol.Copy(dispatch.Response{Body: [][]byte{large, {1}}}); !got.TooLarge || got.Joined != nil || got.Body != nil {
		t.Error("a larger one is copied")
	}
}

// The resources of a request from inside the gateway are released like those of a request from an HTTP client. The
// request declares no client capabilities to the server.
func TestDo_HandlesAMessageWithoutAClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Policy.Allow(gatewaytest.Methods()...)
		opened := g.Inside(gatewaytest.Message{Server: "files", Body: gatewaytest.InitializeAll}, func([]byte) {})
		if opened.Session == "" || !strings.Contains(string(opened.Joined), `"protocolVersion":"2025-11-25"`) {
			t.Fatalf("initialize: %s", opened.Joined)
		}
		if sent := string(g.Files().Opened()[0].Body()); !strings.Contains(sent, `"capabilities":{}`) {
			t.Errorf("the server got %s", sent)
		}
		call := gatewaytest.Call("safe", "").With("Mcp-Session-Id", opened.Session)
		cleaned := 0
		x := g.Request(t.Context(), call, new(dispatch.Callback))
		x.Cleanup = nil // Do sets it
		x.OwnCleanup.Add(func() { cleaned++ })
		if got := x.Do([]byte(call.Body)); string(got.Joined) != `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}` || got.ID == "" || got.Decision == nil {
			t.Errorf("a call: %s", got.Joined)
		}
		if cleaned != 1 {
			t.Errorf("the cleanup ran %d times", cleaned)
		}
		if states := g.Sessions.List(gatewaytest.Tenant); len(states) != 1 || states[0].InFlight != 0 {
			t.Errorf("the session is still in use: %+v", states)
		}
	})
}

func TestEnter_PausesTheTimeoutOnlyForServersThatMaySendRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		for _, tt := range []struct {
			abilities []mcp.Ability
			want      bool
		}{{nil, false}, {mcp.Abilities(), true}} {
			x := g.Request(t.Context(), gatewaytest.Message{Server: "files"}, sse.NewWriter(httptest.NewRecorder(), nil))
			x.Message = new(jsonrpc.Message)
			x.SetProtocol(g.MCP.Sessionful(x))
			x.Enter(&session.Session{Version: "2025-06-18", Client: session.Client{Offer: question.Offer{Abilities: tt.abilities}}})
			if got := x.Deadline != nil; got != tt.want || x.Session == nil || x.Version != "2025-06-18" {
				t.Errorf("with %d abilities: %t, and the terms are %+v", len(tt.abilities), got, x.Terms)
			}
		}
	})
}

func TestBackground_DrainWaitsForRequestsAndRefusesMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b protocol.Background
		for range 2 {
			if !b.Begin() {
				t.Fatal("no request may begin")
			}
		}
		drained := make(chan struct{})
		go func() {
			b.Drain(t.Context())
			close(drained)
		}()
		synctest.Wait()
		if b.Begin() {
			t.Error("a request begins while the gateway is shutting down")
		}
		b.Done()
		synctest.Wait()
		select {
		case <-drained:
			t.Error("Drain did not wait for the second request")
		default:
		}
		b.Done()
		<-drained
	})
}

func TestBackground_DrainEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b protocol.Background
		b.Begin()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		b.Drain(ctx)
		if took := time.Since(begin); took != time.Minute {
			t.Errorf("Drain took %v", took)
		}
		b.Done()
	})
}

func TestLogPanic_LogsTheStack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.MCP.LogPanic(t.Context(), "oh")
		if got := g.Logged(); !strings.Contains(got, "request panicked") || !strings.Contains(got, "panic=oh") || !strings.Contains(got, "TestLogPanic_LogsTheStack") {
			t.Errorf("logged is %s", got)
		}
	})
}

func TestSessionKey_NamesCallerAndServer(t *testing.T) {
	t.Parallel()
	ana, ben := gatewaytest.Caller("ana"), gatewaytest.Caller("ben")
	key := protocol.SessionKey(ana, "files")
	if key.Tenant != gatewaytest.Tenant || key.Subject != "ana" || key.Server != "files" {
		t.Errorf("%+v", key)
	}
	if key == protocol.SessionKey(ben, "files") || key == protocol.SessionKey(ana, "") {
		t.Error("keys of other callers or servers are equal")
	}
}

// If a cleanup function panics, End still ends the request's spans and releases its session.
func TestEnd_RunsEverythingEvenIfACleanupPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		x := g.Request(t.Context(), gatewaytest.Plain("ping", "{}").In(g.Connect("files")), new(dispatch.Callback))
		x.OwnCleanup.Add(func() { panic("oh") })
		resp := x.Serve(strings.NewReader(gatewaytest.Plain("ping", "{}").Body), -1)
		func() {
			defer func() { _ = recover() }()
			x.End(resp)
		}()
		if states := g.Sessions.List(gatewaytest.Tenant); len(states) != 1 || states[0].InFlight != 0 {
			t.Errorf("the session is still in use: %+v", states)
		}
		if begun, ended := len(g.Spans.Started()), len(g.Spans.Ended()); begun != ended {
			t.Errorf("%d spans have begun, and %d have ended", begun, ended)
		}
	})
}
