package protocol

import (
	"bytes"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
)

// InternalResponse is the response to a message that does not come from an MCP client.
type InternalResponse struct {
	dispatch.Response

	// Joined is the response body as one slice. It is nil if the response has no body or the body is too large.
	Joined   []byte
	TooLarge bool
}

// Do handles a message that does not come from an MCP client. The message comes from a task, from a client's hook, or
// from a mesh service that makes a call on behalf of a principal.
func (x *Request) Do(message []byte) InternalResponse {
	x.Cleanup = &x.OwnCleanup
	var resp dispatch.Response
	defer func() { x.End(resp) }()
	resp = x.Serve(bytes.NewReader(message), int64(len(message)))
	return Copy(resp)
}

// Copy returns the response with a copy of its body. The copy is necessary because the memory of the original body is
// reused after the request.
func Copy(resp dispatch.Response) InternalResponse {
	out := InternalResponse{Response: resp}
	out.Joined, out.TooLarge = resp.Copy(dispatch.MaxCallback)
	out.Body = nil
	return out
}
