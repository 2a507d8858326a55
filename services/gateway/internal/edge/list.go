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

// maxToolName is how many bytes a tool's name may have to be asked about. The
// grammar of tool names allows no longer one, so such a tool is never listed.
const maxToolName = 128

// maxPart is how many tools of a list policy is asked about at a time. All parts are to be
// judged by one revision.
const maxPart = 512

const (
	// maxAsking is how many lists policy is asked about at a time, and maxAskingEach how
	// many of one principal.
	maxAsking     = 64
	maxAskingEach = 2
)

// list answers tools/list without what the caller may not see. A caller who may have
// to wait for people is also shown the gateway's own tool to wait with.
//
// A list does nothing at its server, so all of it ends with its caller.
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

// listed brings a page of the server's list. Who could come by nothing gets the one
// that the gateway got, which is one page.
func (x *exchange) listed(ctx context.Context, out *relay) (*gate.Answer, *refusal.Refusal) {
	said, err := x.standing(ctx)
	switch {
	case err != nil:
		return nil, policyAway()
	case x.msg.Cursor != "" && !x.sess.Cursors.Given(x.msg.Cursor):
		return nil, &refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID, Message: "the cursor is none that this session was given."}
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

// unfound is the refusal of what is answered from the gateway's own list, where there is
// none.
func (x *exchange) unfound(ctx context.Context, err error) *refusal.Refusal {
	if errors.Is(err, catalogue.ErrAway) {
		x.deps.Log.WarnContext(ctx, "the catalogue was not told what a server lists", "server", x.server, "error", err)
		return policyAway()
	}
	refused := x.silent(ctx, upstream.Answer{}, err)
	if why := discovery.WhyList(err); why != "" {
		refused.Message = why + "."
	}
	return refused
}

// look tells the catalogue of a page of a list, asks policy about it and notes the
// definitions in it. Where something of it is not known as accepted, that is looked into
// once: the gateway may not have listed the server in the session's revision yet, or the
// catalogue may have lost what it knew.
func (x *exchange) look(ctx context.Context, answer *gate.Answer) (*shown, *refusal.Refusal) {
	if discovered(ctx, x.ownList) == nil { // as for one definition, see Definition
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
				x.ownList.Doubt(ctx, changedAfter) // a change that is not this session's alone stops the tool for all
			}
			x.deps.Sessions.Learn(x.sess, shown.of(known.Digests))
			return shown, nil
		}
	}
}

// mayBeOld reports whether what is not known as accepted may be by now. It has the server
// listed in the session's revision, where that was not done.
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
	// partly says that something is not visible.
	partly bool
	// revision is the one that judged.
	revision string
	// waits reports whether every call of one of the tools waits for people.
	waits bool
	// news says that one was not shown because its definition is not known as accepted.
	news bool
	// changed are the tools whose definition is another one than was accepted.
	changed map[string]bool
}

func (s *shown) hides(t gate.Tool) bool { return !s.visible[t.Name] }

// of returns the digests of the tools that are visible, and of those that have changed: the session's calls are judged
// by what its server lists to it, whatever it lists to others.
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
			seen[name] = make([]byte, sha256.Size) // a digest that no definition has: the list can't be read in one way alone
		}
	}
	return seen
}

// filter asks policy which tools of a list the caller may see. Whatever it does
// not call visible is hidden, and so is a name that stands there twice: which of
// the two a client would read is not known. The gateway's own tool is nobody else's.
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
			x.deps.Log.WarnContext(ctx, "policy did not filter a list", "server", x.server, "error", err)
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
		stint.Part() // where policy is in this process, calls go before the next part
	}
	return out, nil
}
