package dispatch

import (
	"context"
	"errors"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

// listTools responds to tools/list with the tools that the caller may see. If a call may need an approval, the list
// also contains the gateway's own tool for waiting for approvals.
//
// A list request has no side effects, so it is cancelled when the caller disconnects.
func (x *Exchange) listTools(ctx context.Context) Response {
	ctx, cancel := context.WithTimeout(ctx, x.Timeout)
	defer cancel()
	out := x.NewRelay()
	defer out.Settle()
	answer, refused := x.fetchTools(ctx, out)
	if refused == nil && answer.Result.Present() && !answer.ToolList.Present() {
		refused = &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, Message: "the server's answer is not a list of tools."}
	}
	if refused != nil {
		return x.Refuse(ctx, refused)
	}
	shown, refused := x.filterTools(ctx, answer)
	if refused != nil {
		return x.Refuse(ctx, refused)
	}
	if shown.NeedsApproval {
		x.Session.ListsApprovalTool.Store(true)
	}
	edits := MarkPrivate(answer, x.WithClientID(answer, answer.Clean(shown.Hides)), true)
	next := jsonrpc.Unquote(answer.NextCursor.Of(answer.Raw))
	if next != "" {
		x.Session.Cursors.Add(next)
	}
	if next == "" && answer.ToolList.Present() && x.Session.ListsApprovalTool.Load() {
		edits = append(edits, answer.AppendTool([]byte(WaitTool), shown.Hides))
	}
	return x.Edited(ctx, answer, edits)
}

// fetchTools returns a page of the server's list. If no rule can allow the caller to call the server, fetchTools does
// not request the list in the caller's session, but returns the gateway's own list as one page. It does the same if a
// person has to sign in at the server first. The refusal of the first call then says how to sign in.
func (x *Exchange) fetchTools(ctx context.Context, out *Relay) (*jsonrpc.Answer, *refusal.Refusal) {
	access, err := x.Access(ctx)
	switch {
	case err != nil:
		return nil, PolicyUnavailable()
	case x.Message.Cursor != "" && !x.Session.Cursors.Contains(x.Message.Cursor):
		return nil, &refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID, Message: "the cursor was not given in this session."}
	case access.MayCall:
		list, refused := x.AskServer(ctx, upstream.ListTools(x.Message.Cursor, x.AsClient), out)
		if refused == nil || refused.Code != commonv1.Code_CODE_LOGIN_REQUIRED || x.Message.Cursor != "" {
			return list, refused
		}
	}
	found, err := x.Discovery.Get(ctx, discovery.Fresh)
	if err != nil {
		return nil, x.DiscoveryFailed(ctx, err)
	}
	list, err := x.Era.OwnList(found)
	if err != nil {
		return nil, x.DiscoveryFailed(ctx, err)
	}
	return list, nil
}

// DiscoveryFailed returns the refusal for a message that needs the gateway's own list of the server's tools. err is the
// reason why the gateway could not read this list.
func (x *Exchange) DiscoveryFailed(ctx context.Context, err error) *refusal.Refusal {
	if errors.Is(err, toolreport.ErrNotReported) {
		x.Deps.Log.WarnContext(ctx, "tool list not reported to the catalog", "server", x.ServerName, "error", err)
		return PolicyUnavailable()
	}
	refused := x.ServerFailed(ctx, upstream.Answer{}, err)
	if why := discovery.ListFault(err); why != "" {
		refused.Message = why + "."
	}
	return refused
}

// filterTools reports a page of a list to the catalog, asks the policy service which tools the caller may see, and
// stores the visible definitions in the session. If the catalog has not accepted a tool, filterTools tries once more,
// because the catalog's response may be outdated. This can happen if the gateway has not listed the server's tools in
// the session's revision yet, or if the catalog has lost its records.
func (x *Exchange) filterTools(ctx context.Context, answer *jsonrpc.Answer) (*visibility.Tools, *refusal.Refusal) {
	// As in Definition, a tool's first definition can be accepted only after the gateway itself has read the whole list.
	if latestDiscovery(ctx, x.Discovery) == nil {
		x.Discovery.GetWithRetry(ctx)
	}
	for age := time.Duration(anyAge); ; age = servers.RenewAfter {
		known, err := x.reportTools(ctx, answer, age)
		if err != nil {
			return nil, x.DiscoveryFailed(ctx, err)
		}
		shown, err := x.Deps.Visibility.Tools(ctx, x.Viewer(), answer, known)
		if err != nil {
			return nil, FilterFailed(err)
		}
		if !shown.Unaccepted || age == servers.RenewAfter || !x.mayBeOutdated(ctx, known) {
			if len(shown.Changed) > 0 {
				// The gateway reads the list again itself. If this list also contains the changed definition, the tool is blocked
				// for all sessions.
				x.Discovery.RecheckList(ctx, changedAfter)
			}
			x.Deps.Sessions.Learn(x.Session, shown.Digests(known.Digests))
			return shown, nil
		}
	}
}

// mayBeOutdated is called if the catalog's response says that a tool is not accepted. It reports whether this response
// may be outdated. If the gateway has never listed the server's tools in the session's revision, mayBeOutdated first
// lists them.
func (x *Exchange) mayBeOutdated(ctx context.Context, known *toolreport.Response) bool {
	if x.Era.TranslatesRevisions() {
		return time.Since(known.At) > servers.RenewAfter
	}
	if revision := x.Server.Revision(x.Session.Version); revision != nil && revision.Last() == nil {
		if found := x.Discovery.Last(); found == nil || found.Version != x.Session.Version {
			_, err := revision.Get(ctx, discovery.Fresh)
			return err == nil
		}
	}
	return time.Since(known.At) > servers.RenewAfter
}

// Viewer returns the caller for whom the server's lists are filtered.
func (x *Exchange) Viewer() visibility.Caller {
	return visibility.Caller{
		Principal: x.Principal, Session: x.Place().Session, Run: x.Message.Meta.Run, Owner: x.Slot.Owner.Accounts.Root(), Server: x.ServerName,
	}
}

// FilterFailed returns the refusal for a request whose result could not be filtered for the caller.
func FilterFailed(err error) *refusal.Refusal {
	if errors.Is(err, visibility.ErrBusy) {
		return &refusal.Refusal{Code: commonv1.Code_CODE_ABUSE_LIMITED, Message: visibility.ErrBusy.Error() + "."}
	}
	return PolicyUnavailable()
}

// MarkPrivate adds the edits that make an answer cacheable only for this caller, because a policy decision applies only
// to this caller. If the answer was filtered, the edits forbid caching (MCP 2026-07-28, Caching).
func MarkPrivate(answer *jsonrpc.Answer, edits []jsonrpc.Edit, filtered bool) []jsonrpc.Edit {
	ttl, scope := answer.TTL, answer.CacheScope
	switch {
	case scope.Present():
		edits = append(edits, jsonrpc.Edit{Span: scope, With: []byte(`"private"`)})
	case ttl.Present(): // without a cache scope, some clients would treat the answer as public
		edits = append(edits, jsonrpc.Edit{Span: jsonrpc.Span{Start: ttl.End, End: ttl.End}, With: []byte(`,"cacheScope":"private"`)})
	}
	if ttl.Present() && filtered {
		edits = append(edits, jsonrpc.Edit{Span: ttl, With: []byte("0")})
	}
	return edits
}
