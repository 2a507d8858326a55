package rpc

import (
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// errorDomain is the domain of every ErrorInfo that the mesh sends.
const errorDomain = "sluice.dev"

// An Error is a failure to which remote callers can react. For other failures, use ordinary Go errors, whose messages
// the server does not send.
type Error struct {
	// Code is the gRPC status code. The zero value is sent as INTERNAL, so that an error never looks like success.
	Code codes.Code
	// Reason is a stable name in UPPER_SNAKE_CASE. Clients depend on it.
	Reason string
	// RetryAfter is the time after which the caller may retry. It is zero if a retry does not help.
	RetryAfter time.Duration
	// Facts contains named values from which clients can write their own messages. The names are in lower case.
	Facts map[string]string
	// Err is the cause. Its message is sent to the client. If Err is nil, Reason is sent as the message.
	Err error
}

// Error returns the cause's message, or the reason if there is no cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Reason
	}
	return e.Err.Error()
}

// Unwrap returns the cause. The cause itself is not sent to clients.
func (e *Error) Unwrap() error { return e.Err }

// GRPCStatus returns the status that is sent to the client. grpc-go calls it.
func (e *Error) GRPCStatus() *status.Status {
	code := e.Code
	if code == codes.OK {
		code = codes.Internal
	}
	st := status.New(code, e.Error())
	rich, err := st.WithDetails(&errdetails.ErrorInfo{Reason: e.Reason, Domain: errorDomain, Metadata: e.Facts})
	if err == nil && e.RetryAfter > 0 {
		rich, err = rich.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	if err != nil {
		return st // the status without details is enough
	}
	return rich
}

// Reason returns the reason in an error from a server of the mesh, or "" if there is none.
func Reason(err error) string {
	if own, ok := errors.AsType[*Error](err); ok {
		return own.Reason
	}
	return errorInfo(err).GetReason()
}

// Facts returns the facts in an error from a server of the mesh, by name.
func Facts(err error) map[string]string { return errorInfo(err).GetMetadata() }

// errorInfo returns the ErrorInfo that a server of the mesh has added to err, or nil if there is none.
func errorInfo(err error) *errdetails.ErrorInfo {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return info
		}
	}
	return nil
}
