package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// statelessServer is a transport to a fake stateless server. A test sets the server's answers.
type statelessServer struct {
	upstream.ListChanged

	discovered string
	answers    func(ctx context.Context, r upstream.Request, events func([]byte)) (string, error)

	mu  sync.Mutex
	got []string
}

func (*statelessServer) Kind() string { return "http" }
func (*statelessServer) Close() error { return nil }

func (s *statelessServer) Open(_ context.Context, _ principal.Key, r upstream.Request) (upstream.Conn, upstream.Answer, error) {
	if r.Method() != "server/discover" {
		return nil, upstream.Answer{}, fmt.Errorf("%w: it was asked %s", upstream.ErrNoAnswer, r.Method())
	}
	m, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":`+string(r.ID())+`,"result":`+s.discovered+`}`), jsonrpc.AnswerLimits())
	return statelessConn{s}, upstream.Answer{Message: m, Status: 200}, err
}

type statelessConn struct{ *statelessServer }

func (c statelessConn) Request(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
	c.mu.Lock()
	c.got = append(c.got, string(r.Body()))
	c.mu.Unlock()
	text, err := c.answers(ctx, r, events)
	if err != nil {
		return upstream.Answer{}, err
	}
	m, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":`+string(r.ID())+`,`+text+`}`), jsonrpc.AnswerLimits())
	return upstream.Answer{Message: m, Status: 200}, err
}

func (statelessConn) Notify(context.Context, upstream.Request) error {
	return errors.New("such a server takes no notifications")
}
func (statelessConn) Listen(context.Context, upstream.Listener) error { return upstream.ErrNoStream }
func (statelessConn) Close(context.Context) error                     { return nil }

func (s *statelessServer) received() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

const discovered = `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"logging":{},"resources":{"subscribe":true}},"instructions":"i","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"1"}}}`

func serverOf(t *testing.T, over upstream.Transport) *upstream.Server {
	t.Helper()
	counts, err := meters.New(noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	server, err := upstream.New(over, counts)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// bridged opens a session with a stateless server for a client that supports elicitation.
func bridged(t *testing.T, s *statelessServer) (*upstream.Session, *limits.Memory) {
	t.Helper()
	server := serverOf(t, s)
	memory := upstreamtest.Answers().Open(upstreamtest.Holder(principal.Key{Tenant: "acme", Subject: "ana"}))
	t.Cleanup(memory.Close)
	if s.discovered == "" {
		s.discovered = discovered
	}
	abilities := slices.DeleteFunc(mcp.Abilities(), func(a mcp.Ability) bool { return a.Method != mcp.MethodElicit })
	sess, answer, err := server.Bridge(t.Context(), principal.Key{Tenant: "acme", Subject: "ana"}, upstream.Initialize("2025-06-18", "c", "2", abilities...), memory)
	if err != nil {
		t.Fatal(err)
	}
	want := `"result":{"protocolVersion":"2025-06-18","capabilities":{"logging":{},"resources":{"subscribe":true},"tools":{}},"serverInfo":{"name":"s","version":"1"},"instructions":"i"}}`
	if got := string(answer.Message.Raw); s.discovered == discovered && !strings.HasSuffix(got, want) {
		t.Errorf("it greets as %s", got)
	}
	return sess, memory
}

// requestMeta contains the `_meta` members that each request to the stateless server has.
const requestMeta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{},"url":{}}},"io.modelcontextprotocol/clientInfo":{"name":"c","version":"2"}`

func request(t *testing.T, text string, memory *limits.Memory) upstream.Request {
	t.Helper()
	m, err := jsonrpc.Parse([]byte(text), jsonrpc.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return upstream.Request{Message: m, Room: memory}
}

const inputs = `"result":{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{"n":1e2}},"b":{"method":"roots/list"}},"requestState":"s\u00e9"}`

// Each request to the stateless server repeats the session's declarations. If the server asks for input, it receives
// the request again, together with the client's responses and the server's own state. All other bytes are unchanged.
func TestSessions_RepeatsDeclarationsAndAnswersInput(t *testing.T) {
	t.Parallel()
	s := new(statelessServer)
	s.answers = func(context.Context, upstream.Request, func([]byte)) (string, error) {
		if len(s.received()) < 3 {
			return inputs, nil
		}
		return `"result":{"content":[],"resultType":"complete"}`, nil
	}
	sess, memory := bridged(t, s)
	var asked []string
	answer, err := sess.Forward(t.Context(), request(t, `{"jsonrpc":"2.0", "id":"x","method":"tools/call","params":{"name":"t","arguments":{"n":12345678901234567}}}`, memory), func(raw []byte) {
		m, err := jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
		if err != nil {
			t.Error(err)
			return
		}
		id := m.ID.Of(raw)
		asked = append(asked, strings.Replace(string(raw), string(id), "ID", 1))
		result := `{"roots":[ ]}`
		if m.Method == mcp.MethodElicit {
			result = `{"action":"accept","content":{"n":9007199254740993}}`
		}
		reply := request(t, `{"jsonrpc":"2.0","id":`+string(id)+`,"result":`+result+`}`, nil).Message
		if err := sess.Reply(t.Context(), reply); err != nil {
			t.Error(err)
		}
		if err := sess.Reply(t.Context(), reply); err != nil { // no request waits for the second reply
			t.Error(err)
		}
	})
	if err != nil || string(answer.Message.ID.Of(answer.Message.Raw)) != `"x"` || !strings.Contains(string(answer.Message.Raw), `"content":[]`) {
		t.Fatalf("%v, %v", answer.Message, err)
	}
	params := `"name":"t","arguments":{"n":12345678901234567}}}`
	first := `{"jsonrpc":"2.0", "id":"x","method":"tools/call","params":{"_meta":{` + requestMeta + `},` + params
	next := `{"jsonrpc":"2.0", "id":"x","method":"tools/call","params":{"inputResponses":{"a":{"action":"accept","content":{"n":9007199254740993}},"b":{"roots":[ ]}},"requestState":"s\u00e9","_meta":{` + requestMeta + `},` + params
	if diff := cmp.Diff([]string{first, next, next}, s.received()); diff != "" {
		t.Errorf("the server got (-want +got):\n%s", diff)
	}
	slices.Sort(asked)
	want := []string{`{"jsonrpc":"2.0","id":ID,"method":"elicitation/create","params":{"n":1e2}}`, `{"jsonrpc":"2.0","id":ID,"method":"roots/list"}`}
	if diff := cmp.Diff([]string{want[0], want[0], want[1], want[1]}, asked); diff != "" {
		t.Errorf("the client was asked (-want +got):\n%s", diff)
	}
}

// Case U1. A request ends with an error in each of these cases: the server asks for input again and again, no client
// accepts the server's requests, the requests cannot be parsed, or the client does not respond.
func TestSessions_UnansweredInputEndsTheRequest(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer  string
		reply   string
		nobody  bool
		rounds  int
		message string
	}{
		"again and again":         {inputs, `"result":{}`, false, 17, "for input too often"},
		"with nothing but states": {`"result":{"resultType":"input_required","requestState":"s"}`, "", false, 17, "for input too often"},
		"what may not be asked":   {inputs, `"error":{"code":-31403,"message":"m"}`, false, 1, "did not answer"},
		"no receiver":             {inputs, "", true, 1, "no client accepts"},
		"no object":               {`"result":{"inputRequests":[1]}`, "", false, 1, "can't be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &statelessServer{answers: func(context.Context, upstream.Request, func([]byte)) (string, error) { return tt.answer, nil }}
			sess, memory := bridged(t, s)
			events := func(raw []byte) {
				m, err := jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
				if err != nil {
					t.Error(err)
					return
				}
				_ = sess.Reply(t.Context(), request(t, `{"jsonrpc":"2.0","id":`+string(m.ID.Of(raw))+`,`+tt.reply+`}`, nil).Message)
			}
			if tt.nobody {
				events = nil
			}
			answer, err := sess.Forward(t.Context(), request(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`, memory), events)
			if err != nil || !answer.Message.Error.Present() || !strings.Contains(string(answer.Message.Raw), tt.message) || len(s.received()) != tt.rounds {
				t.Errorf("%v, %v after %d rounds", answer.Message, err, len(s.received()))
			}
		})
	}
}

// The server receives the session's settings with each request. Methods that the server does not support are refused
// without a request to the server.
func TestSessions_SendsSettingsWithEachRequest(t *testing.T) {
	t.Parallel()
	s := &statelessServer{answers: func(context.Context, upstream.Request, func([]byte)) (string, error) { return `"result":{}`, nil }}
	sess, memory := bridged(t, s)
	do := func(method, params string) string {
		t.Helper()
		answer, err := sess.Forward(t.Context(), request(t, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`, memory), func([]byte) {})
		if err != nil {
			return err.Error()
		}
		return string(answer.Message.Raw)
	}
	const done = `{"jsonrpc":"2.0","id":1,"result":{}}`
	if got := do("logging/setLevel", `{"level":"loud"}`); !strings.Contains(got, "-32602") {
		t.Errorf("a level that is none: %s", got)
	}
	if got := do("logging/setLevel", `{"level":"info"}`); got != done {
		t.Errorf("a level: %s", got)
	}
	if got := do("vendor/x", `{"_meta":{"progressToken":"p"}}`); got != done {
		t.Errorf("a method of a vendor's: %s", got)
	}
	want := `{"jsonrpc":"2.0","id":1,"method":"vendor/x","params":{"_meta":{` + requestMeta + `,"io.modelcontextprotocol/logLevel":"info","progressToken":"p"}}}`
	if diff := cmp.Diff([]string{want}, s.received()); diff != "" {
		t.Errorf("the server got (-want +got):\n%s", diff)
	}
	if got := do("vendor/x", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2025-11-25"}}`); !strings.Contains(got, "already has a member") {
		t.Errorf("a message that says it itself: %s", got)
	}
	for i := range 100 {
		if got := do("resources/subscribe", fmt.Sprintf(`{"uri":"a:%d"}`, i)); got != done {
			t.Fatalf("subscription %d: %s", i, got)
		}
	}
	if got := do("resources/subscribe", `{"uri":"a:100"}`); !strings.Contains(got, "too many") {
		t.Errorf("one more: %s", got)
	}
	if do("resources/subscribe", `{"uri":"a:1"}`) != done || do("resources/unsubscribe", `{"uri":"a:1"}`) != done || do("resources/subscribe", `{"uri":"a:100"}`) != done {
		t.Error("one in place of another is too many")
	}
}

// When the client cancels a request, the gateway aborts the request to the stateless server, because the server has no
// other way to learn of the cancellation.
func TestSessions_CancellationEndsTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &statelessServer{answers: func(ctx context.Context, _ upstream.Request, _ func([]byte)) (string, error) {
			<-ctx.Done()
			return "", fmt.Errorf("%w: %w", upstream.ErrNoAnswer, context.Cause(ctx))
		}}
		sess, memory := bridged(t, s)
		ended := make(chan error)
		go func() {
			_, err := sess.Forward(t.Context(), request(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`, memory), nil)
			ended <- err
		}()
		synctest.Wait()
		for _, id := range []string{`"1"`, `1`} {
			if err := sess.SendNotification(t.Context(), upstream.Cancelled([]byte(id))); err != nil {
				t.Error(err)
			}
		}
		if err := <-ended; !errors.Is(err, upstream.ErrCancelled) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// The stream of a session with a stateless server is a subscription. When the client subscribes to other resources, a
// new subscription replaces the old one.
func TestSessions_StreamIsASubscription(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &statelessServer{answers: func(ctx context.Context, r upstream.Request, events func([]byte)) (string, error) {
			if r.Method() != mcp.MethodListen {
				return `"result":{}`, nil
			}
			events([]byte(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{}}`))
			events([]byte(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`))
			<-ctx.Done()
			return "", fmt.Errorf("%w: %w", upstream.ErrNoAnswer, context.Cause(ctx))
		}}
		sess, memory := bridged(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		opened, heard, ended := 0, 0, make(chan error)
		go func() {
			ended <- sess.Listen(ctx, upstream.Listener{Room: memory, Opened: func() { opened++ }, Event: func(upstream.Event) error { heard++; return nil }})
		}()
		synctest.Wait()
		other := upstreamtest.Answers().Open(upstreamtest.Holder(principal.Key{Tenant: "acme", Subject: "ana"}))
		defer other.Close()
		if _, err := sess.Forward(t.Context(), request(t, `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"a:b"}}`, other), nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if opened != 1 || heard != 2 {
			t.Errorf("opened %d times, got %d", opened, heard)
		}
		for i, want := range []string{`"resourceSubscriptions":[]`, `"resourceSubscriptions":["a:b"]`} {
			if got := s.received()[i]; !strings.Contains(got, want) {
				t.Errorf("subscription %d: %s", i, got)
			}
		}
		cancel()
		if err := <-ended; err == nil {
			t.Error("it ended by itself")
		}
	})
}

// Once the server has received the first round trip of a request, the request counts as sent, even if the next round
// trip fails. If a request already contains the members that a second round trip would add, the request is not sent.
func TestSessions_RequestCountsAsSentAfterFirstRoundTrip(t *testing.T) {
	t.Parallel()
	s := new(statelessServer)
	s.answers = func(context.Context, upstream.Request, func([]byte)) (string, error) {
		if len(s.received()) == 1 {
			return `"result":{"resultType":"input_required","requestState":"s"}`, nil
		}
		return "", fmt.Errorf("%w: it is away", upstream.ErrNeverSent)
	}
	sess, memory := bridged(t, s)
	_, err := sess.Forward(t.Context(), request(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}`, memory), nil)
	if !errors.Is(err, upstream.ErrNoAnswer) || errors.Is(err, upstream.ErrNeverSent) {
		t.Errorf("it ended with %v", err)
	}
	_, err = sess.Forward(t.Context(), request(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","requestState":"x"}}`, memory), nil)
	if !errors.Is(err, upstream.ErrNeverSent) || len(s.received()) != 2 {
		t.Errorf("it ended with %v, the server got %q", err, s.received())
	}
}
