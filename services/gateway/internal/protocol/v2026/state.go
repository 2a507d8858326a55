package v2026

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/tasks"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// Protocol contains the data that all messages of revision 2026-07-28 share. [New] creates it. After [Protocol.Attach],
// it is safe for concurrent use.
type Protocol struct {
	front   *protocol.Router
	states  stateIDs
	tasks   *tasks.Store
	taskIDs *tasks.IDs
}

// New returns the Protocol. secret is a secret of this gateway that stays the same after a restart.
func New(secret []byte) (*Protocol, error) {
	s := &Protocol{states: newStateIDs()}
	var err error
	if s.tasks, err = tasks.NewStore(); err != nil {
		return nil, err
	}
	s.taskIDs, err = tasks.NewIDs(secret)
	return s, err
}

// Attach sets the router that executes the calls of tasks. It must be called once, before messages are handled.
func (p *Protocol) Attach(front *protocol.Router) { p.front = front }

// Handler returns the handler of a message.
func (p *Protocol) Handler(x *protocol.Request) protocol.Handler {
	return &message{Request: x, Protocol: p}
}

// stateIDs returns the ids with which callers' states are stored. An id is an HMAC of the caller, the server and, if
// necessary, the client. The key of the HMAC is a secret of this gateway. Therefore, the gateway needs no table of ids,
// and two callers never have the same id. stateIDs is safe for concurrent use.
type stateIDs struct {
	mu     sync.Mutex // held while a state is created
	secret []byte
}

func newStateIDs() stateIDs { return stateIDs{secret: []byte(rand.Text())} }

func (s *stateIDs) idFor(key []byte) string {
	mac := hmac.New(sha256.New, s.secret)
	mac.Write(key)
	return hex.EncodeToString(mac.Sum(nil))
}

// enterState assigns the message to a state. A state contains the gateway's data about a caller at a server. It
// replaces the session, because revision 2026-07-28 has no sessions. A caller has a separate state for each combination
// of attributes that the policy distinguishes. Clients can't refer to a state by its id. enterState sends nothing to
// the server. x.releaseState releases the state.
func (x *message) enterState(ctx context.Context) *refusal.Refusal {
	key, identity := protocol.SessionKey(x.Caller, x.ServerName), visibility.AppendKey(nil, x.Principal, x.ServerName)
	identity = append(visibility.AppendPart(identity, key.Tenant), 0)
	identity = append(visibility.AppendPart(identity, key.Subject), 0)
	identity = append(visibility.AppendPart(visibility.AppendPart(identity, key.Person.Tenant), key.Person.Subject), 0)
	if !x.endpoint().hasManyClients() {
		name, version := x.Message.Client()
		identity = fmt.Appendf(identity, "%q %q %s", name, version, mcp.CapabilitiesJSON(x.capabilities))
	}
	id := x.states.idFor(identity)
	x.states.mu.Lock()
	defer x.states.mu.Unlock()
	use := func() error {
		sess, done, err := x.Sessions.Use(id, key)
		if err == nil {
			x.releaseState = sync.OnceFunc(done)
			x.Enter(sess)
			spans.Session(trace.SpanFromContext(ctx), x.Place())
		}
		return err
	}
	if use() == nil {
		return nil
	}
	sess := &session.Session{ID: id, Digest: session.DigestOf(id), Key: key, Accounts: x.Slot.Owner.Accounts, Agent: x.Principal.GetAgent(), Version: mcp.Modern, Opened: time.Now()}
	sess.Client.Name, sess.Client.Version = x.Message.Client()
	x.endpoint().connect(sess)
	err := x.Sessions.Add(sess)
	if err == nil {
		err = use()
	}
	if err != nil {
		return protocol.SessionNotOpened(err)
	}
	return nil
}

// upstreamOpener returns a function that opens a session with the server. The session is used for requests of revision
// 2026-07-28.
func (x *message) upstreamOpener() func(context.Context, *limits.Memory) (*upstream.Session, error) {
	caller, open, hello := principal.Of(x.Principal), x.Server.Upstream.Open, upstream.Discover(x.AsClient).OnBehalfOf(principal.ConnectionsOf(x.Principal))
	if x.translates {
		open = x.Server.Upstream.Bridge
	}
	return func(ctx context.Context, memory *limits.Memory) (*upstream.Session, error) {
		up, _, err := open(ctx, caller, hello, memory)
		return up, err
	}
}
