package grpctools

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxPieces is the maximum number of fields in a response, including fields in nested messages. This limit is necessary
// because a field can be two bytes long on the wire but needs about a hundred bytes in memory.
const maxPieces = 200_000

// errPieces means that a response would need much more memory than its length suggests.
var errPieces = fmt.Errorf("the answer contains more than %d fields", maxPieces)

// frames is a codec that encodes messages to the server. It does not decode messages from the server. They are decoded
// later, after they were checked.
type frames struct{}

// Marshal implements encoding.CodecV2.
func (frames) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a message", v)
	}
	text, err := proto.Marshal(m)
	return mem.BufferSlice{mem.SliceBuffer(text)}, err
}

// Unmarshal implements encoding.CodecV2.
func (frames) Unmarshal(data mem.BufferSlice, v any) error {
	into, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("%T can't receive a message", v)
	}
	*into = data.Materialize()
	return nil
}

// Name implements encoding.CodecV2.
func (frames) Name() string { return "proto" }

// message decodes a response. It returns an error if the response contains too many fields.
func (t *tool) message(text []byte) (protoreflect.Message, error) {
	remaining := maxPieces
	if err := count(text, t.out.Descriptor(), &remaining); err != nil {
		return nil, err
	}
	m := t.out.New()
	return m, proto.Unmarshal(text, m.Interface())
}

// count subtracts the number of fields in a message from *budget. It returns an error if the budget is exhausted.
func count(text []byte, md protoreflect.MessageDescriptor, budget *int) error {
	for len(text) > 0 {
		if *budget--; *budget < 0 {
			return errPieces
		}
		number, kind, n := protowire.ConsumeTag(text)
		if n < 0 {
			return protowire.ParseError(n)
		}
		text = text[n:]
		if n = protowire.ConsumeFieldValue(number, kind, text); n < 0 {
			return protowire.ParseError(n)
		}
		fd := md.Fields().ByNumber(number)
		if fd != nil && kind == protowire.StartGroupType {
			return errors.New("the answer contains a group, which tools do not support")
		}
		if fd != nil && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(text)
			switch {
			case fd.Message() != nil:
				if err := count(value, fd.Message(), budget); err != nil {
					return err
				}
			case fd.IsPacked():
				*budget -= len(value) / 8 // a packed number may be one byte long on the wire, but needs eight bytes in memory
			}
		}
		text = text[n:]
	}
	return nil
}
