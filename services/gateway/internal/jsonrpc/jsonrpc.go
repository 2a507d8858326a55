// Package jsonrpc is the gateway's strict parser for JSON-RPC. It reads the bytes of one message once. It either
// refuses the message with a code, or returns the position of each part in the message. The gateway can therefore
// forward the same bytes that were evaluated, except for the edits that [ApplyEdits] applies.
//
// [Parse] reads a message from a client and enforces all rules for clients. [ReadAnswer] reads a message from a server.
// It requires unambiguous JSON, and finds the parts that the gateway must read or remove.
//
// The package has its own scanner because a scanner for this purpose must count tokens, nesting levels and keys while
// it reads, and must report which rule was violated. Fuzz tests compare the scanner with the strict mode of jsontext.
// The package has no state, so all functions are safe for concurrent use.
package jsonrpc

import (
	"fmt"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// A Span is the half-open range [Start, End) of bytes in a message's Raw. The zero Span means that the part is absent,
// because no part of a message ends at 0.
type Span struct{ Start, End int }

// Present reports whether the part exists.
func (s Span) Present() bool { return s.End > 0 }

// Of returns the bytes of raw in the range of s. The result shares the memory of raw. Of returns nil for an absent
// part.
func (s Span) Of(raw []byte) []byte {
	if !s.Present() {
		return nil
	}
	return raw[s.Start:s.End:s.End]
}

// Kind is the kind of a JSON-RPC message. The zero Kind means that there is no message.
type Kind uint8

// These are the kinds of JSON-RPC messages.
const (
	// Invalid is the zero value. No accepted message has this kind.
	Invalid Kind = iota
	// Request has a method and an id. It must be answered.
	Request
	// Notification has a method and no id.
	Notification
	// Response has an id and a result or an error.
	Response
)

// String returns the kind's name in lower case.
func (k Kind) String() string {
	switch k {
	case Request:
		return "request"
	case Notification:
		return "notification"
	case Response:
		return "response"
	case Invalid:
	}
	return "invalid"
}

// Limits limits the size of one message. Each field is the maximum accepted value. If Limits has the zero value, every
// message is refused.
type Limits struct {
	// Bytes is the maximum length of the whole message.
	Bytes int
	// Depth is the maximum nesting depth of objects and arrays. The message itself is level 1.
	Depth int
	// Tokens is the maximum number of tokens. Scalars, keys, and the opening and closing brackets of objects and arrays
	// are tokens.
	Tokens int
	// KeyBytes is the maximum length of one key in UTF-8, with escapes resolved.
	KeyBytes int
	// NumberBytes is the maximum length of a number as written. It is limited because the time that parsers need to
	// compute exact values grows faster than linearly with this length.
	NumberBytes int
	// IDBytes is the maximum length of a string id in UTF-8, with escapes resolved. It also limits progress tokens.
	IDBytes int
}

// DefaultLimits returns the limits for messages from clients.
func DefaultLimits() Limits {
	return Limits{Bytes: 4 << 20, Depth: 64, Tokens: 10_000, KeyBytes: 256, NumberBytes: canonicaljson.MaxNumber, IDBytes: 128}
}

// AnswerLimits returns the limits for messages from servers. They are higher than the limits for messages from clients,
// because answers contain data. IDBytes does not apply to answers.
func AnswerLimits() Limits {
	return Limits{Bytes: 16 << 20, Depth: 512, Tokens: 4 << 20, KeyBytes: 64 << 10, NumberBytes: canonicaljson.MaxNumber}
}

// An Error explains why a message was refused. It never quotes the message, so it may be logged and shown to users.
type Error struct {
	// Code is the code of the rule that the message violates.
	Code commonv1.Code
	// Detail is a sentence for users that describes the violation. It never contains parts of the message.
	Detail string
	// Offset is the position in the message at which the parser stopped, in bytes.
	Offset int
}

// Error returns the code in lower case, the offset and the detail.
func (e *Error) Error() string {
	return fmt.Sprintf("%s at byte %d: %s", enum.Name(e.Code), e.Offset, e.Detail)
}
