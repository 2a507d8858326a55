package allservers

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/sluice-mesh/sluice/services/gateway/internal/aggregate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// aggregated implements [dispatch.Addressing] for a message that was sent to the URL for all servers and is now
// addressed to one server. The field Aggregate of the request contains the aggregate session.
type aggregated struct{ *protocol.Request }

func (aggregated) IsShared() bool { return true }

func (x aggregated) ClientID(raw []byte) []byte { return aggregate.CombinedID(x.ServerName, raw) }

func (x aggregated) Rename(method string, raw []byte, others []jsonrpc.Edit) ([]jsonrpc.Edit, error) {
	end, err := x.Slot.Answer.TimesliceFor(x.Uncancelled(x.ClientCtx), len(raw))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", dispatch.ErrUnread, err)
	}
	defer end()
	names, err := aggregate.CombineNames(x.ServerName, method, raw)
	return editsOutside(names, others), err
}

// editsOutside returns the edits in names outside the spans of all edits in others, because an edit in others removes
// the whole span.
func editsOutside(names, others []jsonrpc.Edit) []jsonrpc.Edit {
	holes := slices.Clone(others)
	slices.SortFunc(holes, func(a, b jsonrpc.Edit) int { return cmp.Compare(a.Span.Start, b.Span.Start) })
	return slices.DeleteFunc(names, func(e jsonrpc.Edit) bool {
		i := sort.Search(len(holes), func(i int) bool { return holes[i].Span.Start > e.Span.Start })
		return i > 0 && e.Span.End <= holes[i-1].Span.End
	})
}

func (x aggregated) RenameRequest(req upstream.Request) ([]jsonrpc.Edit, error) {
	edits := []jsonrpc.Edit{{Span: req.Message.ID, With: x.ClientID(req.ID())}}
	if token := req.Message.Meta.ProgressToken; token.Present() {
		edits = append(edits, jsonrpc.Edit{Span: token, With: x.ClientID(req.ProgressToken())})
	}
	names, err := aggregate.CombineNames(x.ServerName, req.Method(), req.Body())
	return append(edits, names...), err
}

// Event removes the event's id, because events from different servers have no common order. Therefore, clients can't
// resume the stream after an event.
func (aggregated) Event(e upstream.Event) upstream.Event {
	e.ID, e.Retry = "", ""
	return e
}

// Forwards reports whether a notification with this method is forwarded from a server to the client. It returns false
// for the acknowledgement of a subscription, because the gateway sends its own acknowledgement. It also returns false
// for changes to the tools list, because the client receives the gateway's own list.
func (aggregated) Forwards(notification string) bool {
	return notification != mcp.MethodAcknowledged && notification != mcp.MethodToolsChanged
}

func (x aggregated) IsSubscribed(m *jsonrpc.Answer) bool {
	return jsonrpc.SameID(m.Subscription.Of(m.Raw), x.ID())
}

func (x aggregated) ListedDigest(tool string) []byte {
	if digest := x.Aggregate.Members.ShownDigest(x.ServerName, tool); digest != nil {
		return digest
	}
	return x.Session.Definitions.Digest(tool)
}

func (x aggregated) Resumable(*session.Session) *session.Session { return x.Aggregate }
