package rpc_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawh2"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// lengthProbe returns a probe whose methods respond with "served" whatever the request contains, so that tests can send
// requests of any size.
func lengthProbe() probe {
	return probe{
		unary: func(context.Context, *identityv1.RevokeTokenRequest) (string, error) { return "served", nil },
		stream: func(ss grpc.BidiStreamingServer[identityv1.RevokeTokenRequest, wrapperspb.StringValue]) error {
			for {
				if _, err := ss.Recv(); err != nil {
					return err
				}
				if err := ss.Send(wrapperspb.String("served")); err != nil {
					return err
				}
			}
		},
	}
}

// paddedRequest returns a request of about size bytes. The padding is an unknown field, which counts as part of the
// size.
func paddedRequest(size int) *identityv1.RevokeTokenRequest {
	req := &identityv1.RevokeTokenRequest{Name: "name"}
	pad := []byte{0xfa, 0x01} // field 31, with its length
	for n := size; ; n >>= 7 {
		if n < 0x80 {
			pad = append(pad, byte(n))
			break
		}
		pad = append(pad, byte(n)|0x80)
	}
	req.ProtoReflect().SetUnknown(append(pad, make([]byte, size)...))
	return req
}

// Case X2. Each method, unary or streaming, has a maximum request size. A larger request is refused before it is read.
func TestServer_LimitsRequestSizePerMethod(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, lengthProbe().register(t))
	for _, tt := range []struct {
		method string
		size   int
		want   codes.Code
	}{
		{methodUnary, 60 << 10, codes.OK}, {methodUnary, 64 << 10, codes.ResourceExhausted}, {methodUnary, 4 << 20, codes.ResourceExhausted},
		{methodLarge, 1000 << 10, codes.OK}, {methodLarge, 1 << 20, codes.ResourceExhausted},
		{methodStream, 60 << 10, codes.OK}, {methodStream, 64 << 10, codes.ResourceExhausted},
	} {
		for name, conn := range map[string]grpc.ClientConnInterface{
			"an operator": s.person(t, tokenText(operator)), "a role": s.paths()[1].as(t, gateway, false),
		} {
			t.Run(fmt.Sprintf("X2 %s of %d by %s", tt.method, tt.size, name), func(t *testing.T) {
				t.Parallel()
				var err error
				if tt.method == methodStream {
					err = sendOnStream(timeoutContext(t), conn, tt.size)
				} else {
					err = conn.Invoke(timeoutContext(t), tt.method, paddedRequest(tt.size), new(wrapperspb.StringValue))
				}
				if status.Code(err) != tt.want || tt.want != codes.OK && rpc.Reason(err) != "TOO_MUCH" {
					t.Errorf("got %v, want %v", err, tt.want)
				}
			})
		}
	}
}

// sendOnStream sends two requests on a stream: a small request, and a request of the given size.
func sendOnStream(ctx context.Context, conn grpc.ClientConnInterface, size int) error {
	stream, err := openStream(ctx, conn)
	if err != nil {
		return err
	}
	for _, n := range []int{1, size} {
		if err := stream.Send(paddedRequest(n)); err != nil {
			_, err = stream.Recv()
			return err
		}
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
	return nil
}

// Case X2. A compressed message is refused, because its content may be larger than the length in its header.
func TestServer_RefusesCompressedRequests(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, lengthProbe().register(t))
	for _, method := range []string{methodUnary, methodLarge} {
		err := s.person(t, tokenText(operator)).Invoke(timeoutContext(t), method, paddedRequest(50<<10), new(wrapperspb.StringValue), grpc.UseCompressor(gzip.Name))
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", method, err)
		}
		// The answer would be compressed too, and its counted size would be wrong. An empty request does not have the
		// compression flag, so the server must also check the header of the call.
		err = s.person(t, tokenText(operator)).Invoke(timeoutContext(t), method, new(identityv1.RevokeTokenRequest), new(wrapperspb.StringValue), grpc.UseCompressor(gzip.Name))
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("%s, of an empty request: %v", method, err)
		}
	}
}

// Case X2. The number of calls that a person may have in flight on all connections together is limited. When a call
// ends, another call can start.
func TestServer_LimitsCallsPerPerson(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, lengthProbe().register(t))
	ctx, cancel := context.WithCancel(timeoutContext(t))
	defer cancel()
	const share = 512
	for i := range share {
		if i%256 == 0 {
			conn := s.person(t, tokenText(operator))
			for range 256 {
				stream, err := openStream(ctx, conn)
				if err != nil {
					t.Fatal(err)
				}
				if err := stream.Send(paddedRequest(1)); err != nil {
					t.Fatal(err)
				}
				if _, err := stream.Recv(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	extra := s.person(t, tokenText(operator))
	if _, err := ask(timeoutContext(t), extra, methodUnary); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a person beyond its quota gets %v", err)
	}
	if _, err := ask(timeoutContext(t), s.paths()[1].as(t, gateway, false), methodUnary); err != nil {
		t.Errorf("a role gets %v", err)
	}
	cancel()
	waitFor(t, func() bool {
		_, err := ask(timeoutContext(t), extra, methodUnary)
		return err == nil
	})
}

// Calls of one person wait for an event in their handlers. All of them wait at the same time, although the server
// processes only a few calls of a person at a time. This is possible because each handler ends its turn before it
// waits.
func TestEndTurn_WaitingCallsDoNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	const calls = 8
	waiting, event := make(chan struct{}, calls), make(chan struct{})
	p := lengthProbe()
	p.unary = func(ctx context.Context, _ *identityv1.RevokeTokenRequest) (string, error) {
		rpc.EndTurn(ctx)
		waiting <- struct{}{}
		select {
		case <-event:
			return "served", nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	s := newTestServer(t, p.register(t))
	conn, ctx := s.person(t, tokenText(operator)), timeoutContext(t)
	ended := make(chan error, calls)
	for range calls {
		go func() {
			_, err := ask(ctx, conn, methodUnary)
			ended <- err
		}()
	}
	for n := range calls {
		select {
		case <-waiting:
		case <-ctx.Done():
			t.Fatalf("%d of %d calls are in their handlers", n, calls)
		}
	}
	close(event)
	for range calls {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// Case X2. Clients send nothing, or send too slowly, and are disconnected. Meanwhile the health service responds to
// other clients.
func TestServer_DisconnectsSlowUnauthenticatedClients(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, lengthProbe().register(t))
	dial := func(addr string) net.Conn {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	silent, half := dial(s.plain), dial(s.tls)
	if _, err := half.Write([]byte{22, 3, 1, 2, 0, 1}); err != nil { // the beginning of a ClientHello
		t.Fatal(err)
	}
	polite, err := rawh2.Dial(s.plain, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	secure, err := rawh2.Dial(s.tls, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}, false)
	if err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]func(){
		"one that says nothing": func() { _, _ = io.Copy(io.Discard, silent) }, "a handshake that never ends": func() { _, _ = io.Copy(io.Discard, half) },
		"one that calls nothing": func() { <-polite.Ended() }, "one that calls nothing over TLS": func() { <-secure.Ended() },
	} {
		t.Run("X2 "+name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan struct{})
			go func() {
				read()
				close(ended)
			}()
			select {
			case <-ended:
			case <-time.After(3 * testTimeout):
				t.Error("the connection is still open")
			}
		})
	}
	if _, err := healthv1.NewHealthClient(s.person(t, "")).Check(timeoutContext(t), &healthv1.HealthCheckRequest{}); err != nil {
		t.Errorf("health does not answer: %v", err)
	}
}

// Case X2. All calls on a connection are refused. The server closes the connection.
func TestServer_ClosesConnectionAfterManyRefusals(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, lengthProbe().register(t))
	c, err := rawh2.Dial(s.plain, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if _, err := c.Open(rawh2.HeaderBlock(methodUnary, hpack.HeaderField{Name: "authorization", Value: "Bearer " + strings.Repeat("x", 40)}), true); err != nil {
			break
		}
	}
	select {
	case <-c.Ended():
	case <-time.After(testTimeout):
		t.Error("the connection is still open")
	}
	conn := rawConn(t, s.plain, insecure.NewCredentials())
	if _, err := ask(timeoutContext(t), conn, methodUnary); status.Code(err) != codes.Unauthenticated {
		t.Errorf("the next connection gets %v", err)
	}
}

// Case X2. Unauthenticated callers make calls that never end. The server limits the number of these calls and ends
// them.
func TestServer_LimitsUnauthenticatedCalls(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, lengthProbe().register(t))
	conn := s.person(t, "")
	codesOf := make(chan codes.Code, 8)
	for range cap(codesOf) {
		stream, err := conn.NewStream(timeoutContext(t), &grpc.StreamDesc{ClientStreams: true}, healthv1.Health_Check_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		go func() { codesOf <- status.Code(stream.RecvMsg(new(healthv1.HealthCheckResponse))) }()
	}
	got := make(map[codes.Code]int)
	for range cap(codesOf) {
		got[<-codesOf]++
	}
	if got[codes.ResourceExhausted] != 4 || got[codes.DeadlineExceeded] != 4 {
		t.Errorf("8 calls without an end got %v, want 4 refused by the limit and 4 ended by the timeout", got)
	}
}
