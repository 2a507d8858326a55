package rpc_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawh2"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

type tally struct{ sync.Map }

func (t *tally) of(name string) *atomic.Int64 {
	n, _ := t.LoadOrStore(name, new(atomic.Int64))
	return n.(*atomic.Int64)
}

// answering returns a probe that counts the calls that it receives. The name in a request selects the size of the
// response.
func answering(asked *tally) probe {
	sizes := map[string]int{"name": 4, "tiny": 4, "small": 60 << 10, "large": 4 << 20}
	return probe{
		unary: func(_ context.Context, req *identityv1.RevokeTokenRequest) (string, error) {
			asked.of(req.GetName()).Add(1)
			return strings.Repeat("x", sizes[req.GetName()]), nil
		},
		stream: func(ss grpc.BidiStreamingServer[identityv1.RevokeTokenRequest, wrapperspb.StringValue]) error {
			req, err := ss.Recv()
			if err != nil {
				return err
			}
			asked.of(req.GetName()).Add(1)
			return ss.Send(wrapperspb.String(strings.Repeat("x", sizes[req.GetName()])))
		},
	}
}

// noWindow sets the flow-control window for answers to zero.
var noWindow = http2.Setting{ID: http2.SettingInitialWindowSize}

// callUnread makes calls on one connection. The answers stay unread, because their flow-control window is zero.
func callUnread(t *testing.T, addr, method, name string, calls int, fields ...hpack.HeaderField) *rawh2.Conn {
	t.Helper()
	c, err := rawh2.Dial(addr, nil, false, noWindow)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	body, err := proto.Marshal(&identityv1.RevokeTokenRequest{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	block := rawh2.HeaderBlock(method, fields...)
	for range calls {
		id, err := c.Open(block, false)
		if err != nil {
			t.Fatal(err)
		}
		message := append([]byte{0, 0, 0, 0, byte(len(body))}, body...)
		if err := c.WriteData(id, true, message); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func byOperator() hpack.HeaderField {
	return hpack.HeaderField{Name: "authorization", Value: "Bearer " + tokenText(operator)}
}

// slowTimeout is the maximum time that a slow machine may take to send many answers.
const slowTimeout = 6 * testTimeout

func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc >> 20)
}

// Case X3. A person makes many calls, unary or streaming, and does not read the answers. The person's quota limits the
// answers in memory. Further calls of the person are refused before their methods run, and other callers are not
// affected. After 10 s the client is disconnected, and its quota is released.
func TestServer_BoundsUnreadAnswers(t *testing.T) {
	for _, tt := range []struct{ what, method string }{{"calls", methodUnary}, {"streams", methodStream}} {
		t.Run("X3 "+tt.what, func(t *testing.T) {
			var asked tally
			s := newTestServer(t, answering(&asked).register(t))
			before := heap()
			var deaf []*rawh2.Conn
			for range 4 {
				deaf = append(deaf, callUnread(t, s.plain, tt.method, "large", 25, byOperator()))
			}
			person := s.person(t, tokenText(operator))
			// On a slow machine, the client may be disconnected before its quota is used up.
			for end, full := time.Now().Add(slowTimeout), false; !full && !oneEnds(deaf, 0); {
				if time.Now().After(end) {
					t.Fatal("the quota is not used up, and no connection was closed")
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_, err := ask(ctx, person, methodUnary)
				cancel()
				full = status.Code(err) == codes.ResourceExhausted && rpc.Reason(err) == "TOO_MUCH" && strings.Contains(err.Error(), "read")
			}
			waitForWithin(t, slowTimeout, func() bool { // all calls were answered or refused
				ran := asked.of("large").Load()
				<-time.After(time.Second)
				return asked.of("large").Load() == ran
			})
			held := heap() - before
			t.Logf("%d MiB of unread answers are in memory", held)
			if held > 64 {
				t.Error("want at most 64")
			}
			ran := asked.of("name").Load()
			_, err := ask(timeoutContext(t), person, methodUnary)
			if did := asked.of("name").Load() - ran; (status.Code(err) != codes.ResourceExhausted || did != 0) && !oneEnds(deaf, time.Second) {
				t.Errorf("a person beyond its quota gets %v, and %d of its calls ran", err, did)
			}
			if _, err := ask(timeoutContext(t), s.paths()[1].as(t, gateway, false), methodUnary); err != nil {
				t.Errorf("a role gets %v", err)
			}
			cut := make(chan struct{}, len(deaf))
			for _, c := range deaf {
				go func() {
					<-c.Ended()
					cut <- struct{}{}
				}()
			}
			select {
			case <-cut: // one of the connections whose answers use the quota
			case <-time.After(2 * testTimeout):
				t.Fatal("a client that does not read was not disconnected")
			}
			waitForWithin(t, slowTimeout, func() bool {
				_, err := ask(timeoutContext(t), person, methodUnary)
				return err == nil
			})
			waitForWithin(t, slowTimeout, func() bool { return heap()-before <= 16 })
		})
	}
}

// Case X3.
func TestServer_CountsSmallUnreadAnswersAsCalls(t *testing.T) {
	t.Parallel()
	var asked tally
	s := newTestServer(t, answering(&asked).register(t))
	person := s.person(t, tokenText(operator))
	for cut := true; cut; { // on a slow machine, the client may be disconnected before the check
		before := asked.of("tiny").Load()
		deaf := []*rawh2.Conn{callUnread(t, s.plain, methodUnary, "tiny", 256, byOperator()), callUnread(t, s.plain, methodUnary, "tiny", 256, byOperator())}
		waitFor(t, func() bool { return asked.of("tiny").Load() == before+512 })
		_, err := ask(timeoutContext(t), person, methodUnary)
		refused := status.Code(err) == codes.ResourceExhausted
		if cut = !refused && oneEnds(deaf, time.Second); !refused && !cut {
			t.Errorf("a person with 512 unread answers gets %v", err)
		}
		waitFor(t, func() bool { _, err := ask(timeoutContext(t), person, methodUnary); return err == nil })
	}
}

func oneEnds(conns []*rawh2.Conn, within time.Duration) bool {
	for end := time.Now().Add(within); ; <-time.After(10 * time.Millisecond) {
		for _, c := range conns {
			select {
			case <-c.Ended():
				return true
			default:
			}
		}
		if !time.Now().Before(end) {
			return false
		}
	}
}

// Case X3. An unread answer to an unauthenticated client counts as a call in flight. The client may have four calls in
// flight.
func TestServer_CountsUnreadAnswersOfUnauthenticatedClients(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, lengthProbe().register(t))
	c, err := rawh2.Dial(s.plain, nil, true, noWindow)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	isServed := func() bool {
		id, err := c.Open(rawh2.HeaderBlock(healthv1.Health_Check_FullMethodName), false)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.WriteData(id, true, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		for {
			frame, err := c.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if head, ok := frame.(*http2.HeadersFrame); ok && head.StreamID == id {
				return !head.StreamEnded() // the header of a refused call ends the stream
			}
		}
	}
	served, refused := 0, 0
	for served < 4 && refused < 20 {
		if isServed() {
			served++
			continue
		}
		refused++
		time.Sleep(20 * time.Millisecond) // for a short time, a call and its answer both count
	}
	for range 16 {
		if isServed() {
			served++
		}
	}
	if served != 4 {
		t.Errorf("%d calls of a stranger that reads nothing were served, want 4", served)
	}
}

// Case X3. A client makes many calls that end in different ways. When all calls have ended, the client's whole quota
// has been released, and the client is still connected.
func TestServer_ReleasesQuotaWhenClientLeaves(t *testing.T) {
	t.Parallel()
	var asked tally
	s := &testServer{tokens: newTokens(t)}
	server := s.server(t, rpc.ServerConfig{}, answering(&asked).register(t))
	addr, _ := serve(t, server)
	conn, err := rpc.DialPerson(addr, tokenText(operator), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var calling sync.WaitGroup
	for worker := range 4 {
		calling.Go(func() {
			for i := range 500 {
				name := []string{"name", "small", "large"}[i%3]
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(worker*i)*time.Microsecond)
				_, _ = askFor(ctx, conn, methodUnary, name)
				cancel()
			}
		})
	}
	calling.Wait()
	waitFor(t, func() bool {
		calls, held := rpc.InFlight(server)
		return calls == 0 && held == 0
	})
	if _, err := ask(timeoutContext(t), conn, methodUnary); err != nil {
		t.Error(err)
	}
}

// Case X3. A client opens a stream and does not read it. The server ends the stream's handler and releases the
// messages. If the client reads a stream, it receives all messages.
func TestServer_EndsUnreadStreams(t *testing.T) {
	t.Parallel()
	const messages = 100
	text := strings.Repeat("x", 64<<10)
	ended := make(chan error, 2)
	s := newTestServer(t, whoami().register(t))
	server := s.server(t, rpc.ServerConfig{}, probe{
		unary: func(context.Context, *identityv1.RevokeTokenRequest) (string, error) { return "", nil },
		stream: func(ss grpc.BidiStreamingServer[identityv1.RevokeTokenRequest, wrapperspb.StringValue]) error {
			for range messages {
				if err := ss.Send(wrapperspb.String(text)); err != nil {
					ended <- err
					return err
				}
			}
			ended <- nil
			return nil
		},
	}.register(t))
	addr, _ := serve(t, server)
	conn, err := rpc.DialPerson(addr, tokenText(operator), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	read, err := openStream(timeoutContext(t), conn)
	if err != nil {
		t.Fatal(err)
	}
	for range messages {
		if got, err := read.Recv(); err != nil || len(got.GetValue()) != len(text) {
			t.Fatalf("a reader is not sent everything: %v", err)
		}
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if _, err := openStream(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ended with %v, want the end of its connection", err)
		}
	case <-time.After(3 * testTimeout):
		t.Fatal("the stream of a client that does not read is held")
	}
}
