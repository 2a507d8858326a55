package edge

import (
	"bytes"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
)

// insideAnswer is the response to a caller inside the gateway.
type insideAnswer struct {
	dispatch.Response

	// whole is the body in one piece; nil if there is none, or if it is too large.
	whole    []byte
	tooLarge bool
}

// inside handles a message that no MCP client has sent: it comes from a service of the mesh on behalf of a principal,
// or from a task.
func (x *exchange) inside(message []byte) insideAnswer {
	x.finally = &x.steps
	var resp dispatch.Response
	defer func() { x.end(resp) }()
	resp = x.handle(bytes.NewReader(message), int64(len(message)))
	return collect(resp)
}

// collect copies the body of a response, because the memory of the body is used again once the message is done.
func collect(resp dispatch.Response) insideAnswer {
	out := insideAnswer{Response: resp}
	out.whole, out.tooLarge = resp.Copy(dispatch.MaxCallback)
	out.Body = nil
	return out
}
