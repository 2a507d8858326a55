package allservers

import (
	"context"
	"errors"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

// Begin counts the message as a request to its server, and assigns the message to the member session with that server.
// The caller must call release after the message has been handled.
func (x Member) Begin(ctx context.Context) (release func(), refused *refusal.Refusal) {
	x.Server.Touch()
	slot, err := x.InFlight.Begin(x.Principal, x.ServerName)
	if err != nil {
		full := protocol.TooMuchInFlight(err)
		full.IsProtocolError = false // not a protocol error, because the client's own message was accepted
		return nil, full
	}
	done, refused := x.joinSession(ctx)
	if refused != nil {
		slot.End()
		return nil, refused
	}
	x.Slot = slot
	return func() { done(); slot.End() }, nil
}

// joinSession assigns the message to the member session with the message's server. If there is no such session,
// joinSession creates one. The first request in this session opens it at the server.
func (x Member) joinSession(ctx context.Context) (done func(), refused *refusal.Refusal) {
	key := protocol.SessionKey(x.Caller, x.ServerName)
	use := func(id string) error {
		sess, used, err := x.Sessions.Use(id, key)
		if err == nil {
			x.Enter(sess)
			done = used
		}
		return err
	}
	// Access may have to call the policy service. It is called before Members.UseMember, so that other requests don't have
	// to wait for the policy service.
	access, err := x.Access(ctx)
	if err != nil {
		return nil, dispatch.PolicyUnavailable()
	}
	name, refused := x.Protocol.MemberKey(ctx, access)
	if refused != nil {
		return nil, refused
	}
	err = x.Aggregate.Members.UseMember(name, use, func() (string, error) {
		sess := x.newMember(key, access)
		return sess.ID, x.Sessions.Add(sess)
	})
	switch {
	case err == nil:
		return done, nil
	case errors.Is(err, session.ErrUnknown): // the client has just ended the aggregate session
		return nil, &refusal.Refusal{Code: commonv1.Code_CODE_SESSION_UNKNOWN}
	default:
		return nil, dispatch.PolicyUnavailable()
	}
}

// newMember returns a new member session of the aggregate session. Records about the member session contain the digest
// of the aggregate session's id.
func (x Member) newMember(key session.Key, access visibility.Access) *session.Session {
	parent := x.Aggregate
	id, _ := session.NewID()
	sess := &session.Session{
		ID: id, Digest: parent.Digest, Key: key, Accounts: parent.Accounts, Hub: parent, Agent: parent.Agent, Version: parent.Version, Opened: time.Now(),
		Client: session.Client{Name: parent.Client.Name, Version: parent.Client.Version, Elicits: parent.Client.Elicits},
	}
	x.Protocol.OpenMember(sess, access)
	return sess
}

// useExistingSession assigns the message to the member session with its server. It returns false if there is no such
// session.
func (x Member) useExistingSession() (done func(), ok bool) {
	id, known := x.Aggregate.Members.IDs()[x.ServerName]
	if !known {
		return nil, false
	}
	sess, done, err := x.Sessions.Use(id, protocol.SessionKey(x.Caller, x.ServerName))
	if err != nil {
		return nil, false // the member session has ended
	}
	x.Enter(sess)
	return done, true
}
