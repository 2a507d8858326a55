package protocol

import (
	"bytes"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
)

// InternalResponse is the response to a caller inside the gateway.
type InternalResponse struct {
	dispatch.Response

	// Joined is the body in one piece; nil if there is none, or if it is too large.
	Joined   []byte
	TooLarge bool
}

// Do handles a message that no MCP client has sent. A service of the mesh makes the call on behalf of a principal, or a
// task makes it.
func (x *Request) Do(message []byte) InternalResponse {
	x.Cleanup = &x.OwnCleanup
	var resp dispatch.Response
	defer func() { x.End(resp) }()
	resp = x.Serve(bytes.NewReader(message), int64(len(message)))
	return Copy(resp)
}

// Copy returns a response with a copy of the body, because the memory of the body is reused after the message is done.
func Copy(resp dispatch.Response) InternalResponse {
	out := InternalResponse{Response: resp}
	out.Joined, out.TooLarge = resp.Copy(dispatch.MaxCallback)
	out.Body = nil
	return out
}
