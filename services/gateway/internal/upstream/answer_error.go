package upstream

import (
	"errors"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

// An AnswerError says why a server's answer cannot be used. It contains nothing that the server has sent.
type AnswerError struct {
	// What describes the fault, such as "the message is not valid UTF-8".
	What string
}

// Error implements error.
func (e *AnswerError) Error() string { return e.What }

// These errors describe answers that are valid JSON but can't be used.
var (
	// ErrOtherID means that the id of a response differs from the id of the request.
	ErrOtherID = &AnswerError{"the id of its answer is not that of the request, or is written in another form"}
	// ErrNoID means that a server has sent an error response without a request id.
	ErrNoID = &AnswerError{"it sent an error without the id of a request"}
	// ErrNoResponse means that a server has sent a message that is not a response.
	ErrNoResponse = &AnswerError{"the message is not a response"}
)

// AsAnswerError converts a [*jsonrpc.Error] to an [*AnswerError]. It returns every other error unchanged.
func AsAnswerError(err error) error {
	if refused, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return &AnswerError{refused.Detail}
	}
	return err
}

// AnswerFault returns a description of the fault in a server's answer, without any content that the server has sent. It
// returns "" if err wraps neither an [AnswerError] nor [ErrForged].
func AnswerFault(err error) string {
	if fault, ok := errors.AsType[*AnswerError](err); ok {
		return fault.What
	}
	if errors.Is(err, ErrForged) {
		return ErrForged.Error()
	}
	return ""
}
