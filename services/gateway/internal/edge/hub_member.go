package edge

import (
	"context"
	"errors"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/question"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// enter has a request counted as one to its server, and puts it into the session with that, until
// left is called.
func (x *exchange) enter(ctx context.Context) (left func(), refused *refusal.Refusal) {
	x.target.used.Store(time.Now().UnixNano())
	has, err := x.inFlight.Enter(x.principal, x.server)
	if err != nil {
		full := tooMuchInFlight(err)
		full.IsProtocolError = false // the request itself was accepted
		return nil, full
	}
	done, refused := x.member(ctx)
	if refused != nil {
		has.Leave()
		return nil, refused
	}
	x.has = has
	return func() { done(); has.Leave() }, nil
}

// member puts the message at hand into the session with its server that the one with many has. Where
// there is none yet one is made, of which the server hears with the first request.
func (x *exchange) member(ctx context.Context) (done func(), refused *refusal.Refusal) {
	key := x.key(x.server)
	use := func(id string) error {
		sess, used, err := x.deps.Sessions.Use(id, key)
		if err == nil {
			x.in(sess)
			done = used
		}
		return err
	}
	said, err := x.standing(ctx) // which may have to ask policy, and nobody else is to wait for that
	if err != nil {
		return nil, policyAway()
	}
	name := x.server
	if x.modern != nil {
		if refused := x.meets(ctx, said); refused != nil {
			return nil, refused
		}
		if x.bridged { // a server that is of another era by now, or may ask something else, has another member
			name += inSession + mcp.Told(x.can)
		}
	}
	err = x.hub.Members.Use(name, use, func() (string, error) {
		sess := x.newMember(key, said)
		return sess.ID, x.deps.Sessions.Add(sess)
	})
	switch {
	case err == nil:
		return done, nil
	case errors.Is(err, session.ErrUnknown): // its client has just ended it
		return nil, &refusal.Refusal{Code: commonv1.Code_CODE_SESSION_UNKNOWN}
	default:
		return nil, policyAway()
	}
}

// inSession stands, in the name of a member by which requests of 2026-07-28 go to a server that has sessions,
// between the server's and what that was told of the client.
const inSession = "|"

// meets says how the message at hand, of 2026-07-28, goes to its server, which is asked for that where it is
// not known. There are no tasks among those of many servers: nothing in a request for one names its server.
func (x *exchange) meets(ctx context.Context, said reach.Standing) *refusal.Refusal {
	speaks, known := x.target.knownModern()
	if !known {
		if refused := x.deps.Pipeline.Pass(pipeline.Passing{Principal: x.principal, Server: x.server, Method: methodProbe, Bytes: len(x.msg.Raw)}); refused != nil {
			return refused
		}
		var err error
		if speaks, err = x.target.asksModern(ctx); err != nil {
			return x.unfound(ctx, err)
		}
	}
	x.bridged, x.scope, x.can = !speaks, said, x.tellable(x.hub.Members.Abilities, said)
	return nil
}

// newMember is a member of a hub. Records name all of them by the hub's digest.
func (x *exchange) newMember(key session.Key, said reach.Standing) *session.Session {
	hub, target, who := x.hub, x.target, principal.Of(x.principal)
	claims := x.tellable(hub.Members.Abilities, said)
	id, _ := session.NewID()
	sess := &session.Session{
		ID: id, Digest: hub.Digest, Key: key, Accounts: hub.Accounts, Hub: hub, Agent: hub.Agent, Version: hub.Version, Opened: time.Now(),
		Client: session.Client{Name: hub.Client.Name, Version: hub.Client.Version, Elicits: hub.Client.Elicits},
	}
	if x.modern != nil {
		sess.Upstream = target.Server.Later(x.opensModern(), hub.Members.Opened.Tell)
		return sess
	}
	if said.Some {
		sess.Client.Offer = question.Offer{Abilities: claims, Revision: hub.Version, Joint: true}
	}
	sess.Upstream = target.Server.Later(func(ctx context.Context, has *room.Holding) (*upstream.Session, error) {
		up, opened, err := target.open(ctx, who, upstream.Initialize(hub.Version, hub.Client.Name, hub.Client.Version, claims...), has)
		if err != nil {
			return nil, err
		}
		return up, begin(ctx, up, opened.Message, mcp.IsSupported)
	}, hub.Members.Opened.Tell)
	return sess
}

// existing puts the message at hand into the session with its server that the one with many has; false
// where there is none.
func (x *exchange) existing() (done func(), ok bool) {
	id, known := x.hub.Members.All()[x.server]
	if !known {
		return nil, false
	}
	sess, done, err := x.deps.Sessions.Use(id, x.key(x.server))
	if err != nil {
		return nil, false // it has ended
	}
	x.in(sess)
	return done, true
}
