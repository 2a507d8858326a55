package rpc_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	meshv1 "github.com/sluice-mesh/sluice/gen/sluice/mesh/v1"
	"github.com/sluice-mesh/sluice/services/e2e/network"
)

func echo(_ context.Context, req *identityv1.RevokeTokenRequest) (string, error) {
	return req.GetName(), nil
}

func TestConn_CarriesCalls(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, probe{unary: echo}.register(t))
	conn := s.over(t, gateway, false)
	const calls = 500
	var asking sync.WaitGroup
	for n := range calls {
		asking.Go(func() {
			name := fmt.Sprintf("name-%d", n)
			if got, err := askFor(timeoutContext(t), conn, methodUnary, name); err != nil || got != name {
				t.Errorf("%s was answered %q, %v", name, got, err)
			}
		})
	}
	asking.Wait()
	if sent := conn.Sent(); sent != calls {
		t.Errorf("%d calls of %d were carried", sent, calls)
	}
	if _, err := askFor(timeoutContext(t), conn, methodLarge, strings.Repeat("x", 100<<10)); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a large call: %v", err)
	}
	if sent := conn.Sent(); sent != calls {
		t.Error("a call of 100 KiB was carried")
	}
}

// The stream fails during a call. The client sends the call again as a separate RPC, and another server responds.
func TestConn_RepeatsCallWhenStreamBreaks(t *testing.T) {
	t.Parallel()
	s := &testServer{tokens: newTokens(t)}
	var asked atomic.Int64
	s.start(t, probe{unary: func(ctx context.Context, req *identityv1.RevokeTokenRequest) (string, error) {
		if asked.Add(1) == 1 {
			<-ctx.Done()
		}
		return echo(ctx, req)
	}}.register(t))
	proxy := network.Start(t, s.tls)
	s.tls = proxy.Addr
	conn := s.over(t, gateway, false)
	done := make(chan error, 1)
	go func() {
		got, err := askFor(timeoutContext(t), conn, methodUnary, "again")
		if err == nil && got != "again" {
			err = fmt.Errorf("the answer is %q", got)
		}
		done <- err
	}()
	waitFor(t, func() bool { return asked.Load() == 1 })
	if conn.Sent() != 1 {
		t.Fatal("the call was not carried")
	}
	proxy.Refuse(t)
	proxy.EndFault(t)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A server sends no answer before a call's deadline. The client closes the stream to that server, so that it can use
// another server.
func TestConn_ClosesStreamWithoutAnswers(t *testing.T) {
	t.Parallel()
	hangs := make(chan struct{})
	s := newTestServer(t, probeOf(func(context.Context, string) error {
		<-hangs
		return nil
	}).register(t))
	goOn := sync.OnceFunc(func() { close(hangs) })
	t.Cleanup(goOn) // also if the test fails, because the test server waits for its calls
	conn := s.over(t, gateway, false)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := ask(ctx, conn, methodUnary); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
	waitFor(t, func() bool { return conn.Sent() == 0 })
	goOn()
	if _, err := ask(timeoutContext(t), conn, methodUnary); err != nil || conn.Sent() != 1 {
		t.Errorf("on another stream: %v", err)
	}
}

// Case X2. A client sends an unlimited number of calls on one stream. The server processes at most 1,024 of them at a
// time, and does not read further calls. When the stream ends, the calls end.
func TestCarryCalls_LimitsConcurrentCalls(t *testing.T) {
	t.Parallel()
	s, running := newWaiting(t)
	conn := s.over(t, gateway, false)
	ctx, cancel := context.WithCancel(timeoutContext(t))
	defer cancel()
	stream, err := meshv1.NewCarrierServiceClient(conn.ClientConn).CarryCalls(ctx)
	if err != nil {
		t.Fatal(err)
	}
	text := request(t, "name")
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() {
		for id := uint64(1); ; {
			var batch []*meshv1.CarriedCall
			for range 32 {
				batch = append(batch, &meshv1.CarriedCall{Id: id, Method: methodUnary, Request: text, TimeoutMs: 60_000})
				id++
			}
			if stream.Send(&meshv1.CarryCallsRequest{Calls: batch}) != nil {
				return
			}
		}
	})
	waitFor(t, func() bool { return running.Load() == 1024 })
	<-time.After(100 * time.Millisecond)
	if now := running.Load(); now != 1024 {
		t.Errorf("%d calls are worked on, want 1024", now)
	}
	cancel()
	waitFor(t, func() bool { return running.Load() == 0 })
}

// Case X2. A client does not read answers, so it can't make more calls. Only one stream on a connection can carry
// calls.
func TestCarryCalls_StopsReadingWhenAnswersAreUnread(t *testing.T) {
	t.Parallel()
	var made atomic.Int64
	s := newTestServer(t, probeOf(func(context.Context, string) error {
		made.Add(1)
		return nil
	}).register(t))
	client := meshv1.NewCarrierServiceClient(s.over(t, gateway, false).ClientConn)
	ctx, cancel := context.WithCancel(timeoutContext(t))
	defer cancel()
	stream, err := client.CarryCalls(ctx)
	if err != nil {
		t.Fatal(err)
	}
	text := request(t, "name")
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	sending.Go(func() {
		for id := uint64(1); stream.Send(&meshv1.CarryCallsRequest{Calls: []*meshv1.CarriedCall{{Id: id, Method: methodUnary, Request: text, TimeoutMs: 60_000}}}) == nil; id++ {
		}
	})
	last := int64(-1)
	waitFor(t, func() bool { // wait until no more calls begin
		was := last
		last = made.Load()
		<-time.After(300 * time.Millisecond)
		return last > 1024 && last == was
	})
	t.Logf("%d calls were made without reading answers", last)
	other, err := client.CarryCalls(timeoutContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a second stream: %v", err)
	}
}

func request(t *testing.T, name string) []byte {
	t.Helper()
	text, err := proto.Marshal(&identityv1.RevokeTokenRequest{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The server refuses a call to a method that may not be carried. The stream stays open.
func TestCarryCalls_RefusesOtherMethods(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, probe{unary: echo}.register(t))
	stream, err := meshv1.NewCarrierServiceClient(s.over(t, gateway, true).ClientConn).CarryCalls(timeoutContext(t))
	if err != nil {
		t.Fatal(err)
	}
	for id, tt := range map[uint64]struct {
		call *meshv1.CarriedCall
		code codes.Code
	}{
		1:  {&meshv1.CarriedCall{Method: methodStream, Request: request(t, "n")}, codes.Unimplemented},
		2:  {&meshv1.CarriedCall{Method: "/sluice.mesh.v1.CarrierService/CarryCalls"}, codes.Unimplemented},
		3:  {&meshv1.CarriedCall{Method: "/grpc.health.v1.Health/Check"}, codes.Unimplemented},
		4:  {&meshv1.CarriedCall{}, codes.Unimplemented},
		5:  {&meshv1.CarriedCall{Method: methodUnary, Request: []byte{0xff}}, codes.Internal},
		6:  {&meshv1.CarriedCall{Method: methodUnary, Request: request(t, "not a name")}, codes.InvalidArgument},
		7:  {&meshv1.CarriedCall{Method: methodBehalf, Request: request(t, "n")}, codes.Unauthenticated},
		8:  {&meshv1.CarriedCall{Method: methodBehalf, Request: request(t, "n"), Principal: "forged"}, codes.Unauthenticated},
		9:  {&meshv1.CarriedCall{Method: methodAgents, Request: request(t, "n")}, codes.PermissionDenied},
		10: {&meshv1.CarriedCall{Method: methodUnary, Request: request(t, "n")}, codes.OK},
	} {
		tt.call.Id, tt.call.TimeoutMs = id, 5000
		if err := stream.Send(&meshv1.CarryCallsRequest{Calls: []*meshv1.CarriedCall{tt.call}}); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.GetAnswers()) != 1 || resp.GetAnswers()[0].GetId() != id {
			t.Fatalf("%d: the answers are %v", id, resp)
		}
		var said spb.Status
		if err := proto.Unmarshal(resp.GetAnswers()[0].GetStatus(), &said); err != nil {
			t.Fatal(err)
		}
		if got := codes.Code(said.GetCode()); got != tt.code {
			t.Errorf("%d: %v returns %v, want %v: %s", id, tt.call, got, tt.code, said.GetMessage())
		}
	}
	if err := stream.Send(&meshv1.CarryCallsRequest{Calls: make([]*meshv1.CarriedCall, 33)}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a batch of 33 calls returns %v", err)
	}
}
