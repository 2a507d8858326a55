package upstream

import (
	"errors"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
)

// An AnswerError says why a server's answer can't be used. It contains nothing that a server wrote.
type AnswerError struct {
	// What describes the fault, such as "the message is not valid UTF-8".
	What string
}

// Error implements error.
func (e *AnswerError) Error() string { return e.What }

// Faults of answers other than those of their JSON.
var (
	// ErrOtherID means that the id of an answer differs from that of the request.
	ErrOtherID = &AnswerError{"the id of its answer is not that of the request, or is written in another form"}
	// ErrNoID means that a server sent an error that names no request.
	ErrNoID = &AnswerError{"it sent an error without the id of a request"}
	// ErrNoResponse means that the server sent another message than a response.
	ErrNoResponse = &AnswerError{"the message is not a response"}
)

// Unreadable returns an [*AnswerError] for a [*gate.Error], and any other error unchanged.
func Unreadable(err error) error {
	if refused, ok := errors.AsType[*gate.Error](err); ok {
		return &AnswerError{refused.Detail}
	}
	return err
}

// WhatIsWrong returns the fault of a server's answer in the gateway's words; empty if err names none.
func WhatIsWrong(err error) string {
	if fault, ok := errors.AsType[*AnswerError](err); ok {
		return fault.What
	}
	if errors.Is(err, ErrForged) {
		return ErrForged.Error()
	}
	return ""
}
