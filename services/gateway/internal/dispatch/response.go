// Package dispatch executes callers' requests to one server, in all MCP revisions. It responds to requests that need no
// rule, and passes all other requests to the pipeline. It removes the elements that the caller may not see from lists
// and results. It forwards messages that the server sends before its answer. Packages v2025 and v2026 build an
// [Exchange] and receive a [Response].
package dispatch

import (
	"bytes"
	"net/http"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// Response is the answer to a message. The zero value has no body and HTTP status 200. On a stream, the zero value ends
// the stream without another message.
type Response struct {
	// Body is the JSON-RPC response as a list of slices. It is nil if there is no response, for example to a notification.
	Body [][]byte
	// Status is the HTTP status if no event stream has been started. 0 means 200.
	Status int
	// Refusal is the refusal of the message, or nil if the gateway or a server has answered the message.
	Refusal *refusal.Refusal
	// ErrorType is the type of the error in the answer (OpenTelemetry, error.type), or empty if there is no error.
	ErrorType string
	// Session is the id of the session that was opened by initialize. It is empty for all other messages.
	Session string
	// Held is the total time for which the message has waited for approvers and for the client.
	Held time.Duration
	// Approved is true if a person has approved this particular call.
	Approved bool
	// Unrecorded is true if the call's outcome has not been written to the journal yet.
	Unrecorded bool
	// Detached is true if the server has closed its stream before the answer. If the client can resume streams, it must
	// reconnect to receive the response.
	Detached bool
	// ID is the id of the recorded decision. It is empty if the message has not reached the pipeline. Decision is the
	// policy service's decision on the call, or nil if there is none.
	ID       string
	Decision *policyv1.Decision
}

// Accepted returns HTTP status 202, which is the response to a client's notification or response.
func Accepted() Response { return Response{Status: http.StatusAccepted} }

// Copy returns the body as one new slice. The copy is necessary because the memory of the body is reused after the
// request. If the body is larger than maxBytes, Copy returns nil and true.
func (r Response) Copy(maxBytes int) (whole []byte, tooLarge bool) {
	if SizeOf(r.Body) > maxBytes {
		return nil, true
	}
	return bytes.Join(r.Body, nil), false
}

// SizeOf returns the total size of parts in bytes.
func SizeOf(parts [][]byte) (size int) {
	for _, part := range parts {
		size += len(part)
	}
	return size
}
