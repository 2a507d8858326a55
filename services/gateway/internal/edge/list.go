package edge

import (
	"context"
	"errors"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/catalogue"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

// list answers tools/list without what the caller may not see. If a call may have to wait for an approval, the list
// also has the gateway's own tool to wait with.
//
// A list changes nothing at its server, so the request is cancelled when the caller disconnects.
func (x *core) list(ctx context.Context) dispatch.Response {
	ctx, cancel := context.WithTimeout(ctx, x.timeout)
	defer cancel()
	out := x.newRelay()
	defer out.asks.settle()
	answer, refused := x.listed(ctx, out)
	if refused == nil && answer.Result.Present() && !answer.ToolList.Present() {
		refused = &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, Message: "the server's answer is no list of tools."}
	}
	if refused != nil {
		return x.refuse(ctx, refused)
	}
	shown, refused := x.look(ctx, answer)
	if refused != nil {
		return x.refuse(ctx, refused)
	}
	if shown.NeedsApproval {
		x.sess.Waits.Store(true)
	}
	edits := private(answer, x.addressed(answer, answer.Clean(shown.Hides)), true)
	next := unquote(answer.NextCursor.Of(answer.Raw))
	if next != "" {
		x.sess.Cursors.Give(next)
	}
	if next == "" && answer.ToolList.Present() && x.sess.Waits.Load() {
		edits = append(edits, answer.Add([]byte(waitTool), shown.Hides))
	}
	return x.edited(ctx, answer, edits)
}

// listed returns a page of the server's list. A caller to which policy can allow nothing gets the gateway's own list,
// which is one page.
func (x *core) listed(ctx context.Context, out *relay) (*gate.Answer, *refusal.Refusal) {
	access, err := x.lookupAccess(ctx)
	switch {
	case err != nil:
		return nil, policyAway()
	case x.msg.Cursor != "" && !x.sess.Cursors.Given(x.msg.Cursor):
		return nil, &refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID, Message: "the cursor was not given in this session."}
	case access.MayCall:
		return x.ask(ctx, upstream.ListTools(x.msg.Cursor, x.speaksFor), out)
	}
	found, err := x.ownList.Found(ctx, discovery.Fresh)
	if err != nil {
		return nil, x.unfound(ctx, err)
	}
	list, err := x.era.ownListAnswer(found)
	if err != nil {
		return nil, x.unfound(ctx, err)
	}
	return list, nil
}

// unfound returns the refusal of a message that needs the gateway's own list, if there is none.
func (x *core) unfound(ctx context.Context, err error) *refusal.Refusal {
	if errors.Is(err, catalogue.ErrAway) {
		x.Deps.Log.WarnContext(ctx, "tool list not reported to the catalog", "server", x.server, "error", err)
		return policyAway()
	}
	refused := x.silent(ctx, upstream.Answer{}, err)
	if why := discovery.WhyList(err); why != "" {
		refused.Message = why + "."
	}
	return refused
}

// look reports a page of a list to the catalog, asks policy what the caller may see of it, and remembers the visible
// definitions. If a tool is not known as accepted, look tries once more: the gateway may not have listed the server in
// the session's revision yet, or the catalog may have lost its records.
func (x *core) look(ctx context.Context, answer *gate.Answer) (*visibility.Tools, *refusal.Refusal) {
	if discovered(ctx, x.ownList) == nil { // see Definition: first use needs the whole list
		x.ownList.Insist(ctx)
	}
	for age := time.Duration(anyAge); ; age = servers.RenewAfter {
		known, err := x.known(ctx, answer, age)
		if err != nil {
			return nil, x.unfound(ctx, err)
		}
		shown, err := x.Deps.Visibility.Tools(ctx, x.viewer(), answer, known)
		if err != nil {
			return nil, unfiltered(err)
		}
		if !shown.Unaccepted || age == servers.RenewAfter || !x.mayBeOld(ctx, known) {
			if len(shown.Changed) > 0 {
				x.ownList.Doubt(ctx, changedAfter) // a change for all sessions blocks the tool for all
			}
			x.Deps.Sessions.Learn(x.sess, shown.Digests(known.Digests))
			return shown, nil
		}
	}
}

// mayBeOld reports whether the knowledge that a tool is not accepted may be outdated. If the server was never listed in
// the session's revision, mayBeOld lists it.
func (x *core) mayBeOld(ctx context.Context, known *catalogue.Known) bool {
	if x.era.crosses() {
		return time.Since(known.At) > servers.RenewAfter
	}
	if under := x.target.Revision(x.sess.Version); under != nil && under.Last() == nil {
		if found := x.ownList.Last(); found == nil || found.Version != x.sess.Version {
			_, err := under.Found(ctx, discovery.Fresh)
			return err == nil
		}
	}
	return time.Since(known.At) > servers.RenewAfter
}

// viewer returns the caller for whom lists of the server are filtered.
func (x *core) viewer() visibility.Caller {
	return visibility.Caller{
		Principal: x.Principal, Session: x.place().Session, Run: x.msg.Meta.Run, Owner: x.has.Of.Accounts.Root(), Server: x.server,
	}
}

// unfiltered returns the refusal of a request whose result can't be filtered for the caller.
func unfiltered(err error) *refusal.Refusal {
	if errors.Is(err, visibility.ErrBusy) {
		return &refusal.Refusal{Code: commonv1.Code_CODE_ABUSE_LIMITED, Message: visibility.ErrBusy.Error() + "."}
	}
	return policyAway()
}
