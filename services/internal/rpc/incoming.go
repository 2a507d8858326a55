package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

const (
	// maxRequest is the largest request of any method: arguments of 4 MiB and what
	// goes with them.
	maxRequest = 8 << 20
	// messageHead is the length of what stands before each message: whether it is
	// compressed, and its length.
	messageHead = 5
)

// wire is a call below its messages, as gRPC's own stream offers it. A server of
// grpc-go has one limit on the size of messages for all of its methods, and looks at
// it before anything of ours sees the message; here each method has its own, and
// what a caller may hold is known before a byte of it is asked for
// (docs/decisions/0013-grpc-resource-limits.md).
type wire interface {
	grpc.ServerTransportStream
	RecvCompress() string
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
}

// incoming reads the messages of one call. One goroutine reads, and another one may end it.
type incoming struct {
	ctx context.Context //nolint:containedctx // it lives as long as the call
	// most is the largest message, in bytes.
	most int
	// portion is the call's; nil for nobody's, and inside the process, whose streams
	// carry what their own clients have bounded.
	portion *portion
	// head is what stands before a message.
	head [messageHead]byte

	mu sync.Mutex
	// held is how many bytes of the portion are the message's that was read last.
	held int
	// ended says that nothing is held any more.
	ended bool
}

// only reads the one message of a call and sees to it that no other comes.
func (in *incoming) only(m any) error {
	if err := in.next(m); err != nil {
		if errors.Is(err, io.EOF) {
			return status.Error(codes.Internal, "the call has no request")
		}
		return err
	}
	at, err := wireOf(in.ctx)
	if err != nil {
		return err
	}
	if err := at.ReadMessageHeader(in.head[:]); !errors.Is(err, io.EOF) {
		return status.Error(codes.Internal, "the call has more requests than one, or did not end well")
	}
	return nil
}

// next reads a message, or returns io.EOF where there is none. What the one before it
// held is free.
func (in *incoming) next(m any) error {
	in.free()
	at, err := wireOf(in.ctx)
	if err != nil {
		return err
	}
	if err := at.ReadMessageHeader(in.head[:]); err != nil {
		return cut(err)
	}
	size := binary.BigEndian.Uint32(in.head[1:])
	switch {
	case in.head[0] != 0:
		return errCompressed
	case uint64(size) > uint64(in.most):
		return exhausted("a request of %s has at most %d bytes, this one %d", at.Method(), in.most, size)
	}
	if err := in.hold(int(size)); err != nil {
		return err
	}
	data, err := at.Read(int(size))
	if err != nil {
		return cut(err)
	}
	defer data.Free()
	if err := encoding.GetCodecV2(proto.Name).Unmarshal(data, m); err != nil {
		return status.Errorf(codes.Internal, "the request is no message of its type: %v", err)
	}
	return nil
}

// wireOf returns the call of ctx below its messages.
func wireOf(ctx context.Context) (wire, error) {
	at, ok := grpc.ServerTransportStreamFromContext(ctx).(wire)
	if !ok {
		return nil, errors.New("gRPC's stream can't be read below its messages: this version of it is not supported")
	}
	return at, nil
}

// errCompressed refuses compression: how large a request is would be known too late, and
// gRPC compresses the answer likewise, which then is another one than is counted.
var errCompressed = status.Error(codes.Unimplemented, "calls are not to be compressed")

// plain refuses a call that says its messages are compressed.
func plain(ctx context.Context) error {
	at, err := wireOf(ctx)
	if err != nil {
		return err
	}
	if by := at.RecvCompress(); by != "" && by != encoding.Identity {
		return errCompressed
	}
	return nil
}

// hold counts a large message against the caller's share. A small one is not worth
// it: how many there are is bounded.
func (in *incoming) hold(size int) error {
	if in.portion == nil || size <= smallRequest {
		return nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended {
		return context.Canceled
	}
	if err := in.portion.hold(size); err != nil {
		return err
	}
	in.held = size
	return nil
}

// free gives back what the last message held.
func (in *incoming) free() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.held > 0 {
		_ = in.portion.hold(-in.held) // giving back always works
		in.held = 0
	}
}

// end gives back what is held, for good: a handler may have returned while its messages are
// still read.
func (in *incoming) end() {
	in.mu.Lock()
	in.ended = true
	in.mu.Unlock()
	in.free()
}

// cut is why a message did not come as a whole; io.EOF where none was to come.
func cut(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return status.Error(codes.Internal, "the request ends before its end")
	}
	return err
}
