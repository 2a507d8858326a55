package rpc_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// X3: who opens a stream and does not read it holds neither a handler nor what it
// sends; and who reads is sent everything.
func TestX3StreamsThatNobodyReadsAreEnded(t *testing.T) {
	t.Parallel()
	const messages = 100
	text := strings.Repeat("x", 64<<10)
	ended := make(chan error, 2)
	s := newSite(t, whoami().register(t))
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
	read, err := openStream(soon(t), conn)
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
		if rpc.Reason(err) != "WATCHER_TOO_SLOW" {
			t.Errorf("the stream ended with %v", err)
		}
	case <-time.After(3 * patience):
		t.Fatal("the stream of a client that does not read is held")
	}
}
