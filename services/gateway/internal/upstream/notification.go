package upstream

import (
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// methodMessage is the notification that carries a line of the server's log.
const methodMessage = "notifications/message"

// belongs tells whether a server's notification may go to the client whose request
// it comes with: progress of the request with that token, nil for one that asked
// for none, and lines of the log. Whatever else a server announces is about its
// session, which is the gateway's and not the client's.
func belongs(a *gate.Answer, token []byte) bool {
	switch a.Method {
	case mcp.MethodProgress:
		return gate.SameID(a.ProgressToken.Of(a.Raw), token)
	case methodMessage:
		return true
	default:
		return false
	}
}
