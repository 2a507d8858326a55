// Package dispatch carries out requests of callers to one server, in any revision of MCP. It answers the
// requests that need no rule, filters lists and results by what the caller may see, hands all other requests to the
// pipeline, and forwards what the server sends before its answer. The protocols build an [Exchange] and get a
// [Response].
package dispatch

import (
	"bytes"
	"net/http"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// Response is the answer to a message. The zero value has no body and HTTP status 200: it ends a stream.
type Response struct {
	// Body is the JSON-RPC response, in parts; nil if there is none, as after a notification.
	Body [][]byte
	// Status is the HTTP status if no event stream has begun; 0 means 200.
	Status int
	// Refusal is why the message was refused; nil if the gateway or a server has answered it.
	Refusal *refusal.Refusal
	// ErrorType is the type of the error in the answer (OpenTelemetry, error.type); empty if there is no error.
	ErrorType string
	// Session is the id of the session that initialize has opened; empty otherwise.
	Session string
	// Held is how long the message waited for approvers and for its client.
	Held time.Duration
	// Unrecorded reports whether the outcome of the call is not on record yet.
	Unrecorded bool
	// Detached reports whether the client has to reconnect to get the answer, because the server ended its stream
	// that way.
	Detached bool
	// ID and Decision are set for a call on which policy has decided; zero otherwise.
	ID       string
	Decision *policyv1.Decision
}

// Accepted returns the response to a notification, or to an answer of the client.
func Accepted() Response { return Response{Status: http.StatusAccepted} }

// Copy returns the body in one piece. If the body has more than most bytes, Copy returns nil and true. The memory of a
// [Response]'s body is used again once its message is done.
func (r Response) Copy(most int) (whole []byte, tooLarge bool) {
	if SizeOf(r.Body) > most {
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
