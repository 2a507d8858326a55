package protocol

import (
	"bytes"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
)

// InternalResponse is the response to a caller inside the gateway.
type InternalResponse struct {
	dispatch.Response

	// Joined is the body in one piece; nil if there is none, or if it is too large.
	Joined    []byte
	TooLarge bool
}

// Do handles a message that no MCP client has sent: it comes from a service of the mesh on behalf of a principal,
// or from a task.
func (x *Request) Do(message []byte) InternalResponse {
	x.Cleanup = &x.OwnCleanup
	var resp dispatch.Response
	defer func() { x.End(resp) }()
	resp = x.Serve(bytes.NewReader(message), int64(len(message)))
	return Copy(resp)
}

// Copy copies the body of a response, because the memory of the body is used again once the message is done.
func Copy(resp dispatch.Response) InternalResponse {
	out := InternalResponse{Response: resp}
	out.Joined, out.TooLarge = resp.Copy(dispatch.MaxCallback)
	out.Body = nil
	return out
}
