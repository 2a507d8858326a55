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

// Protocol implements the parts of message handling that differ between the stateless revision 2026-07-28 and the
// earlier revisions, which use sessions. Package v2025 implements the revisions that use sessions, and package v2026
// implements revision 2026-07-28. Differences that are plain values are in [dispatch.Terms]. A Protocol belongs to one
// [Request].
type Protocol interface {
	// Route handles a message by its method.
	Route(ctx context.Context) dispatch.Response
	dispatch.Era

	// SetTerms sets the message's [dispatch.Terms] once the message's session has been found.
	SetTerms(sess *session.Session)
	// The methods below are for messages to the URL for all servers.

	// If the gateway itself can answer the message, OwnAnswer returns a function that answers it. It returns nil if a
	// server must answer the message.
	OwnAnswer() func(context.Context) dispatch.Response
	// DiscoveryOf returns the gateway's discovery of a server, in the MCP revision that the gateway uses to send the
	// message to that server.
	DiscoveryOf(*servers.Server) *discovery.Server
	// ForMember returns the Protocol for the request that is sent to one of the servers.
	ForMember(*Request) Protocol
	// Restore replaces values that the gateway has translated for the client, such as task ids, with the server's
	// original values.
	Restore(ctx context.Context) *refusal.Refusal
	// MemberKey determines the MCP revision that the gateway uses to send the message to its server. It returns the key
	// by which the member session for the message is stored.
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
