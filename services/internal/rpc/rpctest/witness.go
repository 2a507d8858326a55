package rpctest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// A Witness is a connection that copies every message of every unary call when the message is sent or received. Inside
// one process, client and server share the messages, so neither of them may modify a message afterwards. A Witness is
// safe for concurrent use.
type Witness struct {
	grpc.ClientConnInterface
	mu   sync.Mutex
	seen []recordedMessage
}

type recordedMessage struct {
	method   string
	what     string
	message  proto.Message
	original []byte
}

// NewWitness returns a Witness that uses conn. At the end of the test, it reports an error for every message that was
// modified.
func NewWitness(t testing.TB, conn grpc.ClientConnInterface) *Witness {
	t.Helper()
	w := &Witness{ClientConnInterface: conn}
	t.Cleanup(func() {
		for _, message := range w.changed() {
			t.Errorf("a message is read-only once it was sent: %s", message)
		}
	})
	return w
}

// Invoke implements [grpc.ClientConnInterface].
func (w *Witness) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	w.remember(method, "request", args)
	err := w.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	if err == nil {
		w.remember(method, "answer", reply)
	}
	return err
}

// Methods returns the full names of the methods that were called, sorted and without duplicates.
func (w *Witness) Methods() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, m := range w.seen {
		out = append(out, m.method)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (w *Witness) remember(method, what string, message any) {
	m := message.(proto.Message)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, recordedMessage{method, what, m, encode(m)})
}

// changed returns descriptions of the messages that were modified.
func (w *Witness) changed() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, m := range w.seen {
		if !slices.Equal(encode(m.message), m.original) {
			out = append(out, fmt.Sprintf("the %s of %s is now %.300s", m.what, m.method, fmt.Sprint(m.message)))
		}
	}
	return out
}

func encode(m proto.Message) []byte {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err) // every valid message can be encoded
	}
	return raw
}
