package attempt

import (
	"context"
	"errors"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// A Forwarder sends what was judged: to a server, as [upstream.Session] does, or a server's
// own request to the client.
type Forwarder interface {
	Forward(ctx context.Context, req upstream.Request, events func(message []byte)) (upstream.Answer, error)
}

// ErrClient means that a server's own request has no answer because of the client. Compare with
// errors.Is.
var ErrClient = errors.New("the client gave no answer to the server's request")

// Call is one request that passed the gate.
type Call struct {
	// Principal is on whose behalf; never nil. Its session and run are set.
	Principal *identityv1.Principal
	// Stale says that it is not known now whether the principal may call: its token may
	// have been revoked, for the source of the tokens is away, or policy did not say what
	// it may come by. The call is refused.
	Stale bool
	// Revoked tells the same of a later time, and whether the token was: for calls
	// that have waited.
	Revoked func() bool
	// Server is where the call goes, Transport how it is reached (`http` or
	// `stdio`), and Version the protocol revision of the session.
	Server, Transport, Version string
	// Client is the name that the client gives itself; a claim.
	Client string
	// Message is the request as it was judged.
	Message *gate.Message
	// Received is when its last byte came.
	Received time.Time
	// Timeout bounds the upstream's work, unless policy says otherwise, and Patience is the
	// clock of that; nil for one that is never stopped.
	Timeout  time.Duration
	Patience *upstream.Patience
	// MaxTimeout is how long the upstream may work in all if it tells of progress, unless policy says how long it may
	// work; below Timeout: progress changes nothing.
	MaxTimeout time.Duration
	// FromServer says that the request is the server's own, and goes to the client.
	FromServer bool
	// Told is what the server is told that the client can do in place of what the message says, as
	// a raw object; nil for what it says. Mirrored is what its head says of the arguments.
	Told     []byte
	Mirrored []upstream.Header
	// Upstream is where it is forwarded to, and Room what its answer takes.
	Upstream Forwarder
	Room     *room.Holding
	// Reply is the way back to the client before the answer; nil where there is none.
	Reply Reply
	// Hold is for how long the call is held open for people at the most; nil: as the
	// configuration says.
	Hold *time.Duration
	// Resumes is the approval that the call has waited for in an earlier request; empty for none.
	Resumes string
	// Confirm asks whoever sits at the agent; nil where the client can't.
	Confirm Confirm
	// Identity is what stands behind the server's name, as approvals are bound to it.
	Identity string
	// Tools are what the server lists for the caller; where they are nil nobody can be
	// asked about the call.
	Tools Tools
	// Hides says that something is hidden from the caller: then the called tool has to
	// be listed.
	Hides bool
}

// Reply is the way back to a client before its answer. It is safe for concurrent use.
type Reply interface {
	// Event takes what the upstream sends before its answer.
	Event(message []byte)
	// Hold is called where the call is about to wait for a person, and Progress while it
	// does, with how often it was.
	Hold()
	Progress(n int)
}

// Tools are what a server lists for a caller in its session.
type Tools interface {
	// Listed reports whether the caller's list has the called tool. Errors: [ErrUnlisted],
	// or that policy can't be asked.
	Listed(ctx context.Context) (Listing, error)
	// Known returns the digest of the called tool's definition: as the session has listed
	// it, else as the gateway has; nil where neither has. The session's server is not asked.
	Known(ctx context.Context) []byte
	// Definition returns the digest that is known or, where none is or now is set, that of
	// the definition as the server lists it to the session now. It is nil where the server
	// lists no such tool.
	Definition(ctx context.Context, now bool) ([]byte, error)
}

// Word is that of whoever sits at the agent. The zero value is none.
type Word int

const (
	// Unanswered means that nobody has said anything.
	Unanswered Word = iota
	// Confirmed means that the call may run.
	Confirmed
	// Declined means that it must not.
	Declined
)

// Confirm shows a text to whoever sits at the agent and returns the answer. It
// returns when ctx ends.
type Confirm func(ctx context.Context, text string) Word

// Listing is whether a caller's list of a server has a tool.
type Listing struct {
	// Listed says that it has.
	Listed bool
	// Revision is the one that judged.
	Revision string
}

// ErrUnlisted means that it is not known what the server lists.
var ErrUnlisted = errors.New("the server's list could not be read")
