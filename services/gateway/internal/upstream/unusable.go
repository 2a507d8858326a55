package upstream

import (
	"errors"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
)

// An AnswerError says why the answer of a server can't be used. It holds nothing that a server wrote.
type AnswerError struct {
	// What says what is wrong, such as "the message is not valid UTF-8".
	What string
}

// Error implements error.
func (e *AnswerError) Error() string { return e.What }

// Faults of answers that are no faults of their JSON.
var (
	// ErrOtherID means that an answer has another id than the request.
	ErrOtherID = &AnswerError{"its answer has another id than the request, or has it in another form"}
	// ErrNoID means that a server sent an error that names no request.
	ErrNoID = &AnswerError{"it sent an error without the id of a request"}
	// ErrNoResponse means that what came in place of an answer is none.
	ErrNoResponse = &AnswerError{"the message is no response"}
)

// Unreadable returns an [*AnswerError] in place of what the gate says of a message; other errors it returns as they are.
func Unreadable(err error) error {
	if refused, ok := errors.AsType[*gate.Error](err); ok {
		return &AnswerError{refused.Detail}
	}
	return err
}

// WhatIsWrong says what is wrong with the answer of a server, in words that are ours alone; empty if the error says
// nothing of that.
func WhatIsWrong(err error) string {
	if fault, ok := errors.AsType[*AnswerError](err); ok {
		return fault.What
	}
	if errors.Is(err, ErrForged) {
		return ErrForged.Error()
	}
	return ""
}
