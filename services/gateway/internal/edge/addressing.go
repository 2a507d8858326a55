package edge

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/joint"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// addressing is how a client addresses the server of a message: at a URL of its own ([direct]), or as one of many
// servers at one URL ([aggregated]).
type addressing interface {
	// isShared reports whether other servers answer at the same URL.
	isShared() bool
	// clientID returns the id or progress token of a server as the client reads it. Both are raw JSON.
	clientID(raw []byte) []byte
	// rename returns the edits that replace the server's names by those that the client knows, in a message from the
	// server. No edit overlaps others, which are also made to the message.
	rename(method string, raw []byte, others []gate.Edit) ([]gate.Edit, error)
	// renameRequest returns the same for a request from the server.
	renameRequest(req upstream.Request) ([]gate.Edit, error)
	// event returns the event to send on the client's stream for an event of the server's stream.
	event(upstream.Event) upstream.Event
	// passesOn reports whether a notification is forwarded to the client if policy allows it. The gateway sends the others
	// itself.
	passesOn(notification string) bool
	// isSubscribed reports whether a message on the stream of a subscription belongs to the subscription.
	isSubscribed(m *gate.Answer) bool
	// shown returns the digest of a tool's definition as the session has listed it; nil if the session has not listed the
	// tool.
	shown(tool string) []byte
	// resumable returns the session in which a client may continue the stream of an answer.
	resumable(own *session.Session) *session.Session
}

// direct is the addressing of a server at a URL of its own.
type direct struct{ *exchange }

func (direct) isShared() bool { return false }

func (direct) clientID(raw []byte) []byte { return raw }

func (direct) rename(string, []byte, []gate.Edit) ([]gate.Edit, error) { return nil, nil }

func (direct) renameRequest(upstream.Request) ([]gate.Edit, error) { return nil, nil }

func (direct) event(e upstream.Event) upstream.Event { return e }

func (direct) passesOn(string) bool { return true }

func (direct) isSubscribed(*gate.Answer) bool { return true }

func (x direct) shown(tool string) []byte { return x.sess.Definitions.Of(tool) }

func (direct) resumable(own *session.Session) *session.Session { return own }

// aggregated is the addressing of one of many servers at one URL. The exchange's hub is the aggregate session.
type aggregated struct{ *exchange }

func (aggregated) isShared() bool { return true }

func (x aggregated) clientID(raw []byte) []byte { return joint.ID(x.server, raw) }

func (x aggregated) rename(method string, raw []byte, others []gate.Edit) ([]gate.Edit, error) {
	end, err := x.has.Answer.TurnFor(x.whole(x.client), len(raw))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotRead, err)
	}
	defer end()
	names, err := joint.Join(x.server, method, raw)
	return outside(names, others), err
}

// errNotRead means that the caller has disconnected, or waits for too many messages.
var errNotRead = errors.New("the answer was not read")

// outside returns those of the names that are not within others, because those remove the bytes of their spans.
func outside(names, others []gate.Edit) []gate.Edit {
	holes := slices.Clone(others)
	slices.SortFunc(holes, func(a, b gate.Edit) int { return cmp.Compare(a.Span.Start, b.Span.Start) })
	return slices.DeleteFunc(names, func(e gate.Edit) bool {
		i := sort.Search(len(holes), func(i int) bool { return holes[i].Span.Start > e.Span.Start })
		return i > 0 && e.Span.End <= holes[i-1].Span.End
	})
}

func (x aggregated) renameRequest(req upstream.Request) ([]gate.Edit, error) {
	edits := []gate.Edit{{Span: req.Message.ID, With: x.clientID(req.ID())}}
	if token := req.Message.Meta.ProgressToken; token.Present() {
		edits = append(edits, gate.Edit{Span: token, With: x.clientID(req.ProgressToken())})
	}
	names, err := joint.Join(x.server, req.Method(), req.Body())
	return append(edits, names...), err
}

// event removes the id: the events of many servers have no order in which a client could continue them.
func (aggregated) event(e upstream.Event) upstream.Event {
	e.ID, e.Retry = "", ""
	return e
}

// passesOn excludes the acknowledgement of a subscription, because the gateway has sent its own, and changes of the
// list of tools, because the client reads the gateway's own list.
func (aggregated) passesOn(notification string) bool {
	return notification != mcp.MethodAcknowledged && notification != mcp.MethodToolsChanged
}

func (x aggregated) isSubscribed(m *gate.Answer) bool {
	return gate.SameID(m.Subscription.Of(m.Raw), x.id())
}

func (x aggregated) shown(tool string) []byte {
	if digest := x.hub.Members.Shown(x.server, tool); digest != nil {
		return digest
	}
	return x.sess.Definitions.Of(tool)
}

func (x aggregated) resumable(*session.Session) *session.Session { return x.hub }
