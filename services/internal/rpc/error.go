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

// An Error is a failure that callers on the other side of the wire are meant to
// act on. Everything else should stay a plain Go error, which the server hides.
type Error struct {
	// Code is the gRPC status code. The zero value is sent as INTERNAL: an error
	// must not arrive as a success.
	Code codes.Code
	// Reason is stable, UPPER_SNAKE_CASE; clients branch on it.
	Reason string
	// RetryAfter is when to try again; zero when that will not help.
	RetryAfter time.Duration
	// Facts are for clients that say it in their own words; names in lower case.
	Facts map[string]string
	// Err is the cause. Its text is sent to the client. Where it is nil the reason
	// stands in for it.
	Err error
}

// Error returns the cause's text.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Reason
	}
	return e.Err.Error()
}

// Unwrap lets errors.Is see the cause on the server's side of the wire.
func (e *Error) Unwrap() error { return e.Err }

// GRPCStatus is how grpc-go finds the status to send.
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
		return st // details are a courtesy; the code is the contract
	}
	return rich
}

// Reason returns the stable reason that a server of the mesh gave for err, and
// "" where it gave none.
func Reason(err error) string {
	if own, ok := errors.AsType[*Error](err); ok {
		return own.Reason
	}
	return infoOf(err).GetReason()
}

// Facts returns what a server of the mesh told of err beside the reason, by name.
func Facts(err error) map[string]string { return infoOf(err).GetMetadata() }

// infoOf returns what a server of the mesh sent with err; nil where there is
// nothing.
func infoOf(err error) *errdetails.ErrorInfo {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return info
		}
	}
	return nil
}
