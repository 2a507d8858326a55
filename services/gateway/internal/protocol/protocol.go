package protocol

import (
	"context"

	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

// Protocol implements the parts of message handling that depend on whether the revision has sessions. Package v2025
// implements the revisions with sessions. Package v2026 implements revision 2026-07-28, which is stateless. Differences
// that are only values are in [dispatch.Terms]. Each [Request] has its own Protocol.
type Protocol interface {
	// Route handles a message by its method.
	Route(ctx context.Context) dispatch.Response
	dispatch.Era

	// SetTerms sets the message's [dispatch.Terms]. It is called when the message's session has been found.
	SetTerms(sess *session.Session)
	// The methods below are for messages to the URL for all servers.

	// OwnAnswer returns a function that responds to the message if the gateway itself can do so. It returns nil if the
	// message must be sent to a server.
	OwnAnswer() func(context.Context) dispatch.Response
	// DiscoveryOf returns the gateway's discovery of a server in the revision that the message to the server will have.
	DiscoveryOf(*servers.Server) *discovery.Server
	// ForMember returns the Protocol for a request to one of the servers.
	ForMember(*Request) Protocol
	// Restore replaces values that the gateway has translated for the client with the server's original values. Task ids
	// are an example.
	Restore(ctx context.Context) *refusal.Refusal
	// MemberKey determines the revision in which the gateway sends the message to its server. It returns the key with
	// which the client's session with that server is stored.
	MemberKey(ctx context.Context, access visibility.Access) (member string, refused *refusal.Refusal)
	// OpenMember prepares a new member session. The session is opened at the server later.
	OpenMember(sess *session.Session, access visibility.Access)
}

// Handler is the Protocol of a received message.
type Handler interface {
	Protocol
	// Post executes the message.
	Post(ctx context.Context) dispatch.Response
}
