package upstream_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// statefulServer is a transport to a fake server that supports only revisions with sessions.
type statefulServer struct {
	upstream.ListChanged

	answers func(ctx context.Context, r upstream.Request, events func([]byte)) (string, error)
	says    chan string // messages on its session's stream
	kind    string      // http by default
	notify  func(text string) error

	mu  sync.Mutex
	got []string
}

func (s *statefulServer) Kind() string { return cmp.Or(s.kind, "http") }
func (*statefulServer) Close() error   { return nil }

func (s *statefulServer) Open(_ context.Context, _ principal.Key, r upstream.Request) (upstream.Conn, upstream.Answer, error) {
	if r.Method() != "initialize" {
		return nil, upstream.Answer{}, fmt.Errorf("%w: it was asked %s", upstream.ErrNoAnswer, r.Method())
	}
	s.note(r)
	m, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":`+string(r.ID())+`,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s"},"instructions":"i"}}`), jsonrpc.AnswerLimits())
	return statefulConn{s}, upstream.Answer{Message: m}, err
}

func (s *statefulServer) note(r upstream.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, string(r.Body()))
}

func (s *statefulServer) received() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

type statefulConn struct{ *statefulServer }

func (c statefulConn) Request(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
	c.note(r)
	text, err := c.answers(ctx, r, events)
	if err != nil {
		return upstream.Answer{}, err
	}
	m, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":`+string(r.ID())+`,`+text+`}`), jsonrpc.AnswerLimits())
	return upstream.Answer{Message: m}, err
}

func (c statefulConn) Notify(_ context.Context, r upstream.Request) error {
	if c.notify != nil {
		if err := c.notify(string(r.Body())); err != nil {
			return err
		}
	}
	c.note(r)
	return nil
}

func (c statefulConn) Listen(ctx context.Context, to upstream.Listener) error {
	if c.says == nil {
		return upstream.ErrNoStream
	}
	to.Opened()
	for {
		select {
		case text := <-c.says:
			if err := to.Event(upstream.Event{Message: []byte(text)}); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
func (statefulConn) Close(context.Context) error { return nil }

// flattened opens a session that translates requests of revision 2026-07-28 for a server that uses sessions.
func flattened(t *testing.T, s *statefulServer) *upstream.Session {
	t.Helper()
	server := serverOf(t, s)
	memory := holding(t)
	client := &upstream.Client{Name: "c", Version: "2", Claims: slices.DeleteFunc(mcp.Abilities(), func(a mcp.Ability) bool { return a.Method != mcp.MethodElicit })}
	sess, answer, err := server.Bridge(t.Context(), principal.Key{Tenant: "acme", Subject: "ana"}, upstream.Discover(client), memory)
	if err != nil {
		t.Fatal(err)
	}
	want := `"result":{"resultType":"complete","ttlMs":0,"cacheScope":"private","supportedVersions":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],"capabilities":{"tools":{}},"instructions":"i","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}}}`
	if got := string(answer.Message.Raw); !strings.HasSuffix(got, want) {
		t.Errorf("it greets as %s", got)
	}
	if got := s.received(); len(got) != 2 || !strings.Contains(got[0], `"capabilities":{"elicitation":{"form":{},"url":{}}}`) || !strings.Contains(got[1], "notifications/initialized") {
		t.Errorf("the server got %q", got)
	}
	return sess
}

func holding(t *testing.T) *limits.Memory {
	t.Helper()
	memory := upstreamtest.Answers().Open(upstreamtest.Holder(principal.Key{Tenant: "acme", Subject: "ana"}))
	t.Cleanup(memory.Close)
	return memory
}

// leg returns a request of revision 2026-07-28, for use as one round trip of a call. params contains further members of
// the params.
func leg(t *testing.T, id int, params string) upstream.Request {
	t.Helper()
	r := request(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"t","arguments":{"n":1e2},"_meta":{%s,"progressToken":"mine"}%s}}`, id, requestMeta, params), holding(t))
	r.May = func(context.Context, []byte, []byte) *upstream.GatewayMessage { return nil }
	return r
}

func stateOf(t *testing.T, a upstream.Answer) string {
	t.Helper()
	var said struct {
		Result struct{ RequestState string }
	}
	if err := json.Unmarshal(a.Message.Raw, &said); err != nil || said.Result.RequestState == "" {
		t.Fatalf("no state in %s: %v", a.Message.Raw, err)
	}
	return said.Result.RequestState
}

// asker makes the server send progress and a request to the client twice before it answers.
func asker(s *statefulServer) {
	s.answers = func(ctx context.Context, r upstream.Request, events func([]byte)) (string, error) {
		for i := range 2 {
			n := len(s.received())
			events([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"mine","progress":9}}`))
			events([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + string(r.ProgressToken()) + `,"progress":1}}`))
			events([]byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`))
			events(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"q%d","method":"elicitation/create","params":{"i":%d}}`, i, i))
			for len(s.received()) == n {
				select {
				case <-ctx.Done():
					return "", fmt.Errorf("%w: %w", upstream.ErrNoAnswer, context.Cause(ctx))
				case <-time.After(time.Millisecond):
				}
			}
		}
		return `"result":{"content":[]}`, nil
	}
}

// During a call, the server sends requests to the client. The client responds by repeating the call. The original call
// continues with the client's responses, and the server receives only one call.
func TestStateless_RepeatedCallContinues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(statefulServer)
		asker(s)
		sess := flattened(t, s)
		before := len(s.received())
		var heard []string
		params := ""
		for i := range 2 {
			a, err := sess.Forward(t.Context(), leg(t, i+1, params), func(raw []byte) { heard = append(heard, string(raw)) })
			want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"resultType":"input_required","inputRequests":{"%d":{"method":"elicitation/create","params":{"i":%d}}},"requestState":"`, i+1, i+1, i)
			if err != nil || !strings.HasPrefix(string(a.Message.Raw), want) {
				t.Fatalf("%v, %s", err, a.Message.Raw)
			}
			state := stateOf(t, a)
			wrong := leg(t, 9, fmt.Sprintf(`,"inputResponses":{"%d":{}},"requestState":"%s"`, i+1, state))
			wrong.Message = request(t, strings.Replace(string(wrong.Body()), `"n":1e2`, `"n":1e3`, 1), nil).Message
			if a, err := sess.Forward(t.Context(), wrong, nil); err != nil || !upstream.HasCode(a.Message, mcp.CodeInvalidParams) {
				t.Errorf("a state of another request: %v, %v", a.Message, err)
			}
			params = fmt.Sprintf(`,"inputResponses":{"%d":{"n":12345678901234567,"i":%d},"x":{}},"requestState":"%s"`, i+1, i, state)
		}
		a, err := sess.Forward(t.Context(), leg(t, 3, params), nil)
		if err != nil || string(a.Message.Raw) != `{"jsonrpc":"2.0","id":3,"result":{"resultType":"complete","content":[]}}` {
			t.Errorf("%v, %v", a.Message, err)
		}
		if a, err := sess.Forward(t.Context(), leg(t, 4, params), nil); err != nil || !upstream.HasCode(a.Message, mcp.CodeInvalidParams) {
			t.Errorf("a state that was used: %v, %v", a.Message, err)
		}
		own := regexp.MustCompile(`"sluice-[A-Z0-9]+"`)
		got := s.received()[before:]
		got[0] = own.ReplaceAllString(got[0], "OWN")
		want := []string{
			`{"jsonrpc":"2.0","id":OWN,"method":"tools/call","params":{"name":"t","arguments":{"n":1e2},"_meta":{"progressToken":OWN}}}`,
			`{"jsonrpc":"2.0","id":"q0","result":{"n":12345678901234567,"i":0}}`, `{"jsonrpc":"2.0","id":"q1","result":{"n":12345678901234567,"i":1}}`,
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("the server got (-want +got):\n%s", diff)
		}
		if told := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"mine","progress":1}}`; !slices.Equal(heard, []string{told, told}) {
			t.Errorf("got %q", heard)
		}
	})
}

// A server sends messages immediately, before the function that receives them has been set. No message is lost.
func TestStateless_ImmediateMessagesAreReceived(t *testing.T) {
	t.Parallel()
	s := &statefulServer{answers: func(_ context.Context, r upstream.Request, events func([]byte)) (string, error) {
		events([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + string(r.ProgressToken()) + `,"progress":1}}`))
		return `"result":{"content":[]}`, nil
	}}
	sess := flattened(t, s)
	heard := 0
	for i := range 1000 {
		if _, err := sess.Forward(t.Context(), leg(t, i, ""), func([]byte) { heard++ }); err != nil {
			t.Fatal(err)
		}
	}
	if heard != 1000 {
		t.Errorf("%d of 1000 were received", heard)
	}
}

// Case U1. If the policy denies a server's request, that request is refused and the call continues. A call that waits
// for its client to repeat it ends in each of these cases: the client does not repeat it before the timeout, too many
// calls are waiting, or the client cancels it.
func TestStateless_WaitingCallEnds(t *testing.T) {
	t.Parallel()
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := new(statefulServer)
			asker(s)
			sess := flattened(t, s)
			r := leg(t, 1, "")
			r.May = func(_ context.Context, id, raw []byte) *upstream.GatewayMessage {
				if !strings.Contains(string(raw), `"elicitation/create"`) {
					t.Errorf("asked of %s", raw)
				}
				return new(upstream.Refused(id, -31403, "no"))
			}
			a, err := sess.Forward(t.Context(), r, nil)
			if err != nil || !strings.Contains(string(a.Message.Raw), `"content":[]`) {
				t.Errorf("%v, %v", a.Message, err)
			}
			if got := s.received(); !strings.Contains(got[len(got)-1], `"id":"q1","error":{"code":-31403`) {
				t.Errorf("the server got %q", got)
			}
		})
	})
	t.Run("no client comes back", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := new(statefulServer)
			asker(s)
			sess := flattened(t, s)
			a, err := sess.Forward(t.Context(), leg(t, 1, ""), nil)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(11 * time.Minute)
			synctest.Wait()
			if got := s.received(); !strings.Contains(got[len(got)-1], `"notifications/cancelled","params":{"requestId":"sluice-`) {
				t.Errorf("the server got %q", got)
			}
			if a, err := sess.Forward(t.Context(), leg(t, 2, `,"inputResponses":{"1":{}},"requestState":"`+stateOf(t, a)+`"`), nil); err != nil || !upstream.HasCode(a.Message, mcp.CodeInvalidParams) {
				t.Errorf("a late request: %v, %v", a.Message, err)
			}
		})
	})
	t.Run("too many wait", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := new(statefulServer)
			sess := flattened(t, s)
			s.answers = func(ctx context.Context, _ upstream.Request, events func([]byte)) (string, error) {
				events([]byte(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}`))
				<-ctx.Done()
				return "", fmt.Errorf("%w: %w", upstream.ErrNoAnswer, context.Cause(ctx))
			}
			for i := range 16 {
				a, err := sess.Forward(t.Context(), leg(t, i+1, ""), nil)
				if err != nil {
					t.Fatal(err)
				}
				stateOf(t, a)
			}
			a, err := sess.Forward(t.Context(), leg(t, 17, ""), nil)
			if err != nil || !upstream.HasCode(a.Message, mcp.CodeInternal) {
				t.Errorf("%v, %v", a.Message, err)
			}
			if err := sess.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("given up", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &statefulServer{answers: func(ctx context.Context, _ upstream.Request, _ func([]byte)) (string, error) {
				<-ctx.Done()
				return "", fmt.Errorf("%w: %w", upstream.ErrNoAnswer, context.Cause(ctx))
			}}
			sess := flattened(t, s)
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, upstream.ErrCancelled)
			defer cancel()
			if _, err := sess.Forward(ctx, leg(t, 1, ""), nil); !errors.Is(err, upstream.ErrCancelled) {
				t.Errorf("it ended with %v", err)
			}
			if got := s.received(); !strings.Contains(got[len(got)-1], `"requestId":"sluice-`) {
				t.Errorf("the server got %q", got)
			}
		})
	})
	t.Run("it asks without sessions all the same", func(t *testing.T) {
		t.Parallel()
		s := &statefulServer{answers: func(context.Context, upstream.Request, func([]byte)) (string, error) {
			return `"result":{"inputRequests":{"a":{"method":"elicitation/create"}}}`, nil
		}}
		sess := flattened(t, s)
		if a, err := sess.Forward(t.Context(), leg(t, 1, ""), nil); !errors.Is(err, upstream.ErrNoAnswer) {
			t.Errorf("%v, %v", a.Message, err)
		}
	})
}

// Case U1. A server sends another request while the policy service is evaluating an earlier one. The two requests are
// evaluated separately, and a client cannot respond to a request that it has not received.
func TestStateless_LateServerRequestIsDecidedSeparately(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &statefulServer{answers: func(ctx context.Context, _ upstream.Request, events func([]byte)) (string, error) {
			events([]byte(`{"jsonrpc":"2.0","id":"good","method":"elicitation/create","params":{}}`))
			time.Sleep(105 * time.Millisecond) // policy is evaluating the first request at this time
			events([]byte(`{"jsonrpc":"2.0","id":"evil","method":"sampling/createMessage","params":{}}`))
			time.Sleep(time.Second)
			events([]byte(`{"jsonrpc":"2.0","id":"late","method":"elicitation/create","params":{}}`))
			<-ctx.Done()
			return "", fmt.Errorf("%w: %w", upstream.ErrNoAnswer, context.Cause(ctx))
		}}
		sess := flattened(t, s)
		var decided []string
		may := func(_ context.Context, id, raw []byte) *upstream.GatewayMessage {
			decided = append(decided, string(id))
			time.Sleep(10 * time.Millisecond)
			if strings.Contains(string(raw), "sampling") {
				return new(upstream.Refused(id, -32601, "no"))
			}
			return nil
		}
		r := leg(t, 1, "")
		r.May = may
		a, err := sess.Forward(t.Context(), r, nil)
		if err != nil || strings.Contains(string(a.Message.Raw), "sampling") || strings.Join(decided, " ") != `"good" "evil"` {
			t.Fatalf("%v, %s, decided on %q", err, a.Message.Raw, decided)
		}
		time.Sleep(2 * time.Second) // in the meantime the server has sent another request, which the client has not received
		r = leg(t, 2, `,"inputResponses":{"3":{"leak":1}},"requestState":"`+stateOf(t, a)+`"`)
		r.May = may
		if a, err = sess.Forward(t.Context(), r, nil); err != nil || !strings.Contains(string(a.Message.Raw), `"inputRequests":{"1":{`) || !strings.Contains(string(a.Message.Raw), `"3":{`) {
			t.Errorf("%v, %s", err, a.Message.Raw)
		}
		if got := strings.Join(s.received(), "\n"); strings.Contains(got, "leak") || !strings.Contains(got, `"id":"evil","error"`) {
			t.Errorf("the server got %s", got)
		}
		if len(decided) != 4 { // the first request is evaluated again, because policy may have changed
			t.Errorf("decided on %q", decided)
		}
		if err := sess.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Case N2. The number of requests that wait for their clients to repeat them is limited for each caller and server. The
// limit applies to all clients of the caller together.
func TestStateless_WaitingRequestsOfACallerAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &statefulServer{answers: func(ctx context.Context, _ upstream.Request, events func([]byte)) (string, error) {
			events([]byte(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}`))
			<-ctx.Done()
			return "", fmt.Errorf("%w: %w", upstream.ErrNoAnswer, context.Cause(ctx))
		}}
		server := serverOf(t, s)
		waits := 0
		var all []*upstream.Session
		for range 6 {
			sess, _, err := server.Bridge(t.Context(), principal.Key{Tenant: "acme", Subject: "ana"}, upstream.Discover(new(upstream.Client)), holding(t))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, sess)
			for i := range 16 {
				a, err := sess.Forward(t.Context(), leg(t, i+1, ""), nil)
				if err != nil {
					t.Fatal(err)
				}
				if !a.Message.Error.Present() {
					waits++
				}
			}
		}
		if waits != 64 {
			t.Errorf("%d wait", waits)
		}
		for _, sess := range all {
			if err := sess.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		sess, _, err := server.Bridge(t.Context(), principal.Key{Tenant: "acme", Subject: "ana"}, upstream.Discover(new(upstream.Client)), holding(t))
		if err != nil {
			t.Fatal(err)
		}
		if a, err := sess.Forward(t.Context(), leg(t, 1, ""), nil); err != nil || a.Message.Error.Present() {
			t.Errorf("once they have ended: %v, %v", a.Message, err)
		}
		if err := sess.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
