package edge

import (
	"context"

	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

// protocol is what the two families of MCP revisions do differently with one message: those with sessions ([v2025]),
// and 2026-07-28 ([v2026]). Differences that are only values for the rest of the gateway are in [Terms].
type protocol interface {
	// route handles a message by its method.
	route(ctx context.Context) dispatch.Response
	dispatch.Era

	// enters sets the terms of a message that was put into its session.
	enters(sess *session.Session)
	// The rest is for the URL of many servers.

	// answersItself returns the function with which the gateway answers the message itself; nil if a server answers it.
	answersItself() func(context.Context) dispatch.Response
	// viewOf returns the gateway's own discovery of a server in the revision in which the message is sent to it.
	viewOf(*servers.Server) *discovery.Server
	// forMember returns the protocol of the message to one of the servers.
	forMember(*exchange) protocol
	// restore replaces what the gateway gave the client, such as the id of a task, by what the server reads.
	restore(ctx context.Context) *refusal.Refusal
	// meet finds out how the message is sent to its server, and returns the key of the member session for that.
	meet(ctx context.Context, access visibility.Access) (member string, refused *refusal.Refusal)
	// openMember sets how a new member session is opened with the server.
	openMember(sess *session.Session, access visibility.Access)
}

// handler is the protocol of a message that has not been read yet.
type handler interface {
	protocol
	// post carries out the message.
	post(ctx context.Context) dispatch.Response
}
