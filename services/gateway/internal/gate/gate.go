// Package gate is the strict gate of the gateway: it reads the bytes of one
// JSON-RPC message once and either refuses them with a code or says where in
// those very bytes each part stands. What is forwarded is therefore what was
// judged, save for the named replacements that [Splice] makes.
//
// [Parse] reads what a client sent and enforces every rule of admission.
// [ReadAnswer] reads what an upstream sent; it insists on unambiguous JSON and
// finds the places where the gateway has to look or to cut.
//
// The scanner is the package's own, because it has to count tokens, levels and
// keys while it reads and must name the rule that was broken. Fuzz tests hold
// it to jsontext's strict reading. The package keeps no state: all functions
// are safe for concurrent use.
package gate

import (
	"fmt"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/internal/canonical"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// A Span is the half-open range [Start, End) of bytes in a message's Raw. The
// zero Span means that the part is absent; no part of a message ends at 0.
type Span struct{ Start, End int }

// Present reports whether the part exists.
func (s Span) Present() bool { return s.End > 0 }

// Of returns the bytes of raw that s covers: a slice of raw, not a copy. An
// absent part is nil.
func (s Span) Of(raw []byte) []byte {
	if !s.Present() {
		return nil
	}
	return raw[s.Start:s.End:s.End]
}

// Kind is what a JSON-RPC message is. The zero Kind is no message at all.
type Kind uint8

// The kinds of JSON-RPC messages.
const (
	// Invalid is the zero value; no accepted message has it.
	Invalid Kind = iota
	// Request has a method and an id: it wants an answer.
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

// Limits bound one message. Each is the largest value still accepted. The zero
// Limits refuse everything.
type Limits struct {
	// Bytes is the length of the whole message.
	Bytes int
	// Depth counts nested objects and arrays; the message itself is level 1.
	Depth int
	// Tokens counts scalars, keys, and both brackets of objects and arrays.
	Tokens int
	// KeyBytes is the length of one key in UTF-8, escapes resolved.
	KeyBytes int
	// NumberBytes is the length of a number as it is written. Exact readers take
	// more time for a number than its length says.
	NumberBytes int
	// IDBytes is the length of a string id in UTF-8, escapes resolved. It bounds
	// progress tokens as well.
	IDBytes int
}

// DefaultLimits are the limits of what clients send.
func DefaultLimits() Limits {
	return Limits{Bytes: 4 << 20, Depth: 64, Tokens: 10_000, KeyBytes: 256, NumberBytes: canonical.MaxNumber, IDBytes: 128}
}

// AnswerLimits are the limits of what upstreams send. They are wider, because
// answers carry data. IDBytes does not apply to answers.
func AnswerLimits() Limits {
	return Limits{Bytes: 16 << 20, Depth: 512, Tokens: 4 << 20, KeyBytes: 64 << 10, NumberBytes: canonical.MaxNumber}
}

// An Error says why a message was refused. It never quotes the message, so it
// may be logged and shown.
type Error struct {
	// Code is one of the gate's codes.
	Code commonv1.Code
	// Detail is a sentence for people, always a constant or made of constants.
	Detail string
	// Offset is where in the message the gate stopped, in bytes.
	Offset int
}

// Error returns the code in lower case, the offset and the detail.
func (e *Error) Error() string {
	return fmt.Sprintf("%s at byte %d: %s", enum.Name(e.Code), e.Offset, e.Detail)
}
