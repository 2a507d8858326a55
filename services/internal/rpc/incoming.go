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
	// maxRequest is the maximum size in bytes of a request to any method. A request of this size has space for 4 MiB of
	// arguments and for its other fields.
	maxRequest = 8 << 20
	// messageHead is the size in bytes of the header of a gRPC message: one byte for the compression flag, and four
	// bytes for the length.
	messageHead = 5
)

// wire is grpc-go's internal stream for a call, which reads bytes instead of decoded messages. A grpc-go server has one
// maximum message size for all methods, and checks it before any interceptor runs. In this package, each method has its
// own maximum, and the caller's quota is checked before the message is read
// (docs/decisions/0013-grpc-resource-limits.md).
type wire interface {
	grpc.ServerTransportStream
	RecvCompress() string
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
}

// incoming reads the messages of one call. One goroutine reads them. Another goroutine may call end at the same time.
type incoming struct {
	ctx context.Context //nolint:containedctx // an incoming lives as long as its call
	// maxSize is the maximum size of a message, in bytes.
	maxSize int
	// portion is the part of the caller's quota that the call uses. It is nil for an unauthenticated caller, and for calls
	// inside the process, whose clients limit their own streams.
	portion *callUsage
	// head is the buffer for the header of a message.
	head [messageHead]byte

	mu sync.Mutex
	// held is the number of bytes of the quota that the most recent message uses.
	held int
	// ended is true after [incoming.end] has released the quota.
	ended bool
}

// readSingle reads the only message of a call. It returns an error if another message follows.
func (in *incoming) readSingle(m any) error {
	if err := in.readNext(m); err != nil {
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
		return status.Error(codes.Internal, "the call has more than one request, or was not ended correctly")
	}
	return nil
}

// readNext releases the quota that the previous message uses, and then reads the next message. It returns io.EOF if
// there is none.
func (in *incoming) readNext(m any) error {
	in.release()
	at, err := wireOf(in.ctx)
	if err != nil {
		return err
	}
	if err := at.ReadMessageHeader(in.head[:]); err != nil {
		return readError(err)
	}
	size := binary.BigEndian.Uint32(in.head[1:])
	switch {
	case in.head[0] != 0:
		return errCompressed
	case uint64(size) > uint64(in.maxSize):
		return exhaustedError("a request of %s may have at most %d bytes, but this request has %d", at.Method(), in.maxSize, size)
	}
	if err := in.charge(int(size)); err != nil {
		return err
	}
	data, err := at.Read(int(size))
	if err != nil {
		return readError(err)
	}
	defer data.Free()
	if err := encoding.GetCodecV2(proto.Name).Unmarshal(data, m); err != nil {
		return status.Errorf(codes.Internal, "the request is not a message of its type: %v", err)
	}
	return nil
}

// wireOf returns grpc-go's internal stream for the call to which ctx belongs.
func wireOf(ctx context.Context) (wire, error) {
	at, ok := grpc.ServerTransportStreamFromContext(ctx).(wire)
	if !ok {
		return nil, errors.New("gRPC's stream can't be read below its messages: this version of it is not supported")
	}
	return at, nil
}

// errCompressed refuses compressed messages. The size of a compressed request is unknown until the request is
// decompressed. gRPC would also compress the response, so the counted size of the response would be wrong.
var errCompressed = status.Error(codes.Unimplemented, "compressed calls are not supported")

// refuseCompressed refuses a call whose header announces compressed messages.
func refuseCompressed(ctx context.Context) error {
	at, err := wireOf(ctx)
	if err != nil {
		return err
	}
	if by := at.RecvCompress(); by != "" && by != encoding.Identity {
		return errCompressed
	}
	return nil
}

// charge counts a large message against the caller's quota. Small messages are not counted, because the number of calls
// is limited too.
func (in *incoming) charge(size int) error {
	if in.portion == nil || size <= smallRequest {
		return nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended {
		return context.Canceled
	}
	if err := in.portion.chargeRequest(size); err != nil {
		return err
	}
	in.held = size
	return nil
}

func (in *incoming) release() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.held > 0 {
		_ = in.portion.chargeRequest(-in.held) // it never fails for a negative number
		in.held = 0
	}
}

// end releases the quota and prevents further charges to it. This is necessary because a handler can return while its
// messages are still being read.
func (in *incoming) end() {
	in.mu.Lock()
	in.ended = true
	in.mu.Unlock()
	in.release()
}

// readError converts an error that occurred while a message was read. It returns io.EOF if there is no further message.
func readError(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return status.Error(codes.Internal, "the request is incomplete")
	}
	return err
}
