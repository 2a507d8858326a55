package edge

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/catalogue"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/turn"
)

// maxToolName is the maximum length of a tool's name, in bytes. The grammar of tool names allows no longer ones, so
// policy is not asked about them and they are not listed.
const maxToolName = 128

// maxPart is how many tools of a list are filtered in one request to policy. All parts must be decided by one policy
// revision.
const maxPart = 512

const (
	// maxAsking is how many lists policy filters at once, and maxAskingEach how many of them for one principal.
	maxAsking     = 64
	maxAskingEach = 2
)

// list answers tools/list without what the caller may not see. If a call may have to wait for an approval, the list
// also has the gateway's own tool to wait with.
//
// A list changes nothing at its server, so the request is cancelled when the caller disconnects.
func (x *exchange) list(ctx context.Context) dispatch.Response {
	ctx, cancel := context.WithTimeout(ctx, x.target.Timeout)
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
	if shown.waits {
		x.sess.Waits.Store(true)
	}
	edits := private(answer, x.addressed(answer, answer.Clean(shown.hides)), true)
	next := unquote(answer.NextCursor.Of(answer.Raw))
	if next != "" {
		x.sess.Cursors.Give(next)
	}
	if next == "" && answer.ToolList.Present() && x.sess.Waits.Load() {
		edits = append(edits, answer.Add([]byte(waitTool), shown.hides))
	}
	return x.edited(ctx, answer, edits)
}

// listed returns a page of the server's list. A caller to which policy can allow nothing gets the gateway's own list,
// which is one page.
func (x *exchange) listed(ctx context.Context, out *relay) (*gate.Answer, *refusal.Refusal) {
	said, err := x.standing(ctx)
	switch {
	case err != nil:
		return nil, policyAway()
	case x.msg.Cursor != "" && !x.sess.Cursors.Given(x.msg.Cursor):
		return nil, &refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID, Message: "the cursor was not given in this session."}
	case said.Some:
		return x.ask(ctx, upstream.ListTools(x.msg.Cursor, x.speaksFor), out)
	}
	found, err := x.ownList.Found(ctx, discovery.Fresh)
	if err != nil {
		return nil, x.unfound(ctx, err)
	}
	list, err := x.protocol.ownListAnswer(found)
	if err != nil {
		return nil, x.unfound(ctx, err)
	}
	return list, nil
}

// unfound returns the refusal of a message that needs the gateway's own list, if there is none.
func (x *exchange) unfound(ctx context.Context, err error) *refusal.Refusal {
	if errors.Is(err, catalogue.ErrAway) {
		x.deps.Log.WarnContext(ctx, "tool list not reported to the catalog", "server", x.server, "error", err)
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
func (x *exchange) look(ctx context.Context, answer *gate.Answer) (*shown, *refusal.Refusal) {
	if discovered(ctx, x.ownList) == nil { // see Definition: first use needs the whole list
		x.ownList.Insist(ctx)
	}
	for age := time.Duration(anyAge); ; age = newsAfter {
		known, err := x.known(ctx, answer, age)
		if err != nil {
			return nil, x.unfound(ctx, err)
		}
		shown, refused := x.filter(ctx, answer, known)
		if refused != nil {
			return nil, refused
		}
		if !shown.news || age == newsAfter || !x.mayBeOld(ctx, known) {
			if len(shown.changed) > 0 {
				x.ownList.Doubt(ctx, changedAfter) // a change for all sessions blocks the tool for all
			}
			x.deps.Sessions.Learn(x.sess, shown.of(known.Digests))
			return shown, nil
		}
	}
}

// mayBeOld reports whether the knowledge that a tool is not accepted may be outdated. If the server was never listed in
// the session's revision, mayBeOld lists it.
func (x *exchange) mayBeOld(ctx context.Context, known *catalogue.Known) bool {
	if x.protocol.crosses() {
		return time.Since(known.At) > newsAfter
	}
	if under := x.target.under[x.sess.Version]; under != nil && under.Last() == nil {
		if found := x.ownList.Last(); found == nil || found.Version != x.sess.Version {
			_, err := under.Found(ctx, discovery.Fresh)
			return err == nil
		}
	}
	return time.Since(known.At) > newsAfter
}

func tooManyLists() *refusal.Refusal {
	return &refusal.Refusal{Code: commonv1.Code_CODE_ABUSE_LIMITED, Message: "too many lists are being read; wait for some of them."}
}

// shown is what a caller sees of a list.
type shown struct {
	visible map[string]bool
	// partly reports whether a tool is not visible.
	partly bool
	// revision is the policy revision that decided.
	revision string
	// waits reports whether a visible tool needs an approval for every call.
	waits bool
	// news reports whether a tool is hidden because its definition is not known as accepted.
	news bool
	// changed are the tools whose definition differs from the accepted one.
	changed map[string]bool
}

func (s *shown) hides(t gate.Tool) bool { return !s.visible[t.Name] }

// of returns the digests of the visible tools, and of those that have changed: the session's calls are decided by what
// the server lists to this session, whatever it lists to others.
func (s *shown) of(known map[string][]byte) map[string][]byte {
	if !s.partly {
		return known
	}
	seen := make(map[string][]byte, len(known))
	for name, digest := range known {
		if s.visible[name] || s.changed[name] {
			seen[name] = digest
		}
	}
	for name := range s.changed {
		if seen[name] == nil {
			seen[name] = make([]byte, sha256.Size) // no definition has this digest: the tool is ambiguous
		}
	}
	return seen
}

// filter asks policy which tools of a list the caller may see. It hides all others, and names that are listed twice,
// because clients may read either definition. It also hides a server's tool that has the name of the gateway's own.
func (x *exchange) filter(ctx context.Context, answer *gate.Answer, known *catalogue.Known) (*shown, *refusal.Refusal) {
	var asked []*policyv1.ToolRef
	listed := make(map[string]int, len(answer.Tools))
	for _, t := range answer.Tools {
		if t.Name == "" || len(t.Name) > maxToolName || t.Name == mcp.ToolApprovalWait {
			continue
		}
		if listed[t.Name]++; listed[t.Name] == 1 {
			asked = append(asked, &policyv1.ToolRef{Name: t.Name, DefinitionDigest: known.Digests[t.Name]})
		}
	}
	done, err := x.asking.Take(ctx, x.has.Of.Accounts.Root())
	if err != nil {
		return nil, tooManyLists()
	}
	defer done()
	ctx, cancel := context.WithTimeout(authn.OnBehalfOf(ctx, x.acting()), peerTimeout)
	defer cancel()
	out := &shown{visible: make(map[string]bool, len(asked)), changed: make(map[string]bool)}
	var stint turn.Stint
	for first := true; first || len(asked) > 0; first = false {
		part := asked[:min(len(asked), maxPart)]
		asked = asked[len(part):]
		resp, err := x.deps.Policy.FilterTools(ctx, &policyv1.FilterToolsRequest{Server: x.server, Tools: part, MinRevision: known.Activation})
		if err != nil || len(resp.GetTools()) != len(part) || !first && resp.GetPolicyRevision() != out.revision {
			x.deps.Log.WarnContext(ctx, "tool list not filtered by policy", "server", x.server, "error", err)
			return nil, policyAway()
		}
		out.revision = resp.GetPolicyRevision()
		for _, t := range resp.GetTools() {
			visible := t.GetVisible() && listed[t.GetName()] == 1
			out.visible[t.GetName()] = visible
			out.partly = out.partly || !visible
			if !visible && t.GetCode() == commonv1.Code_CODE_TOOL_CHANGED {
				out.changed[t.GetName()] = true
			}
			out.news = out.news || !visible && (t.GetCode() == commonv1.Code_CODE_TOOL_CHANGED || t.GetCode() == commonv1.Code_CODE_TOOL_UNKNOWN && t.GetRule() == nil)
			out.waits = out.waits || visible && t.GetCode() == commonv1.Code_CODE_APPROVAL_REQUIRED
		}
		stint.Part() // if policy runs in this process, waiting calls run before the next part
	}
	return out, nil
}
