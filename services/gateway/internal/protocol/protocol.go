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

// Protocol is what the two families of MCP revisions do differently with one message: those with sessions (package
// v2025), and 2026-07-28 (package v2026). Differences that are only values for the rest of the gateway are in
// [dispatch.Terms]. A Protocol belongs to one [Request].
type Protocol interface {
	// Route handles a message by its method.
	Route(ctx context.Context) dispatch.Response
	dispatch.Era

	// SetTerms sets the terms of a message that was put into its session.
	SetTerms(sess *session.Session)
	// The rest is for the URL of many servers.

	// OwnAnswer returns the function with which the gateway answers the message itself; nil if a server answers it.
	OwnAnswer() func(context.Context) dispatch.Response
	// DiscoveryOf returns the gateway's own discovery of a server in the revision in which the message is sent to it.
	DiscoveryOf(*servers.Server) *discovery.Server
	// ForMember returns the protocol of the message that is sent to one of the servers.
	ForMember(*Request) Protocol
	// Restore replaces what the gateway gave the client, such as the id of a task, by what the server reads.
	Restore(ctx context.Context) *refusal.Refusal
	// MemberKey finds out in which revision the message is sent to its server, and returns the key of the member
	// session that it is sent in.
	MemberKey(ctx context.Context, access visibility.Access) (member string, refused *refusal.Refusal)
	// OpenMember sets how a new member session is opened with the server.
	OpenMember(sess *session.Session, access visibility.Access)
}

// Handler is the protocol of a message that has not been read yet.
type Handler interface {
	Protocol
	// Post carries out the message.
	Post(ctx context.Context) dispatch.Response
}
