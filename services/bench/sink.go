package bench

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
)

// sink is a server that receives spans over OTLP. It drops them without decoding them, in order to use little CPU time.
type sink struct {
	server *grpc.Server
	lis    net.Listener
}

func startSink(ctx context.Context) (*sink, error) {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for spans: %w", err)
	}
	s := &sink{lis: lis, server: grpc.NewServer(grpc.ForceServerCodec(discardCodec{}), grpc.UnknownServiceHandler(discardCall))}
	go func() { _ = s.server.Serve(lis) }() // Serve returns after close
	return s, nil
}

func (s *sink) url() string { return "http://" + s.lis.Addr().String() }

func (s *sink) close() { s.server.Stop() }

// discardCall answers every gRPC method. It receives one message and responds with an empty message.
func discardCall(_ any, stream grpc.ServerStream) error {
	if err := stream.RecvMsg(nil); err != nil {
		return err
	}
	return stream.SendMsg(nil)
}

// discardCodec is a codec that decodes nothing and encodes every message as an empty message.
type discardCodec struct{}

// Marshal implements encoding.Codec.
func (discardCodec) Marshal(any) ([]byte, error) { return nil, nil }

// Unmarshal implements encoding.Codec.
func (discardCodec) Unmarshal([]byte, any) error { return nil }

// Name implements encoding.Codec.
func (discardCodec) Name() string { return "unread" }
