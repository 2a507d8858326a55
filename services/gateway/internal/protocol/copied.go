package protocol

import (
	"bytes"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
)

// Copied is the response to a caller inside the gateway.
type Copied struct {
	dispatch.Response

	// Whole is the body in one piece; nil if there is none, or if it is too large.
	Whole    []byte
	TooLarge bool
}

// Do handles a message that no MCP client has sent: it comes from a service of the mesh on behalf of a principal,
// or from a task.
func (x *Request) Do(message []byte) Copied {
	x.Cleanup = &x.OwnCleanup
	var resp dispatch.Response
	defer func() { x.End(resp) }()
	resp = x.Serve(bytes.NewReader(message), int64(len(message)))
	return Copy(resp)
}

// Copy copies the body of a response, because the memory of the body is used again once the message is done.
func Copy(resp dispatch.Response) Copied {
	out := Copied{Response: resp}
	out.Whole, out.TooLarge = resp.Copy(dispatch.MaxCallback)
	out.Body = nil
	return out
}
