package edge

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/aggregate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/joint"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
)

const (
	// foundWithin is for how long a list waits for servers of which the gateway knows nothing yet, or
	// nothing that counts any more.
	foundWithin = 3 * time.Second
	// maxGreeting is how large a server's greeting may be that is read for all, in bytes.
	maxGreeting = 256 << 10
	// gatherWithin bounds asking a server for a list, all of its pages, of which there are
	// maxGatheredPages at the most, and maxGathering how many servers are asked at a time.
	gatherWithin     = 10 * time.Second
	maxGatheredPages = 20
	maxGathering     = 8
	// maxGatheredEach is how much one server may add to a list that it is asked for, in bytes. Each element is counted
	// with perGathered bytes more than it has.
	maxGatheredEach = 4 << 20
	perGathered     = 64
)

// reached is one of the servers on which the caller could come by something.
type reached struct {
	*exchange

	said reach.Standing
	// found is what the gateway knows of it, however old; nil for nothing. Greeting is what it says
	// there that it has.
	found    *discovery.Found
	greeting *gate.Answer
	// part is what the server adds to a list, and memory what that takes.
	part   aggregate.Part
	memory *room.Holding
	// unrecorded says that the outcome of asking it is not on record yet.
	unrecorded bool
}

// reached returns the servers on which the caller could come by something, by their names. One of
// which nothing is known holds the others up for 3 s at the most.
func (x *exchange) reached(ctx context.Context) ([]*reached, *refusal.Refusal) {
	if err := x.has.Admit(ctx); err != nil {
		return nil, notAdmitted(err)
	}
	var out []*reached
	var all sync.WaitGroup
	defer all.Wait() // behind cancel
	ctx, cancel := context.WithTimeout(ctx, foundWithin)
	defer cancel()
	for _, server := range slices.Sorted(maps.Keys(x.targets)) {
		s := &reached{exchange: x.at(server), part: aggregate.Part{Server: server}}
		var err error
		if s.said, err = s.standing(ctx); err != nil {
			return nil, policyAway()
		}
		if !s.said.Some {
			continue
		}
		if aggregate.FieldOf(x.msg.Method) == "" { // else it is asked, and that is counted
			if refused := x.deps.Pipeline.Pass(pipeline.Passing{Principal: x.Principal, Server: server, Method: x.msg.Method}); refused != nil {
				return nil, refused
			}
		}
		out = append(out, s)
		x.guarded(&all, func() { s.find(ctx) })
	}
	all.Wait()
	return out, nil
}

// find finds what the gateway knows of the server. A program that nobody uses is not started for it,
// and one that gives no answer now is as it was: its calls say what is wrong.
func (s *reached) find(ctx context.Context) {
	s.part.Missing = &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE} // also where looking panics
	var err error
	of := s.protocol.viewOf(s.target)
	if s.found = of.Last(); s.found == nil || !s.target.program() {
		of.Renew(discovery.Fresh) // which goes on for others where this caller waits no longer
		if _, err = of.Found(ctx, discovery.Fresh); err != nil {
			s.part.Missing = s.unfound(ctx, err)
		}
		s.found = of.Last()
	}
	if s.found == nil {
		return
	}
	if len(s.found.Greeting.Raw) > maxGreeting { // which every client's initialize would have to read
		s.found, s.part.Missing = nil, &refusal.Refusal{Code: commonv1.Code_CODE_BODY_TOO_LARGE}
		return
	}
	if s.greeting, err = greetingOf(s.found); err != nil {
		s.found = nil
		return
	}
	if s.target.program() || time.Since(s.found.At) <= discovery.Fresh {
		s.part.Missing = nil
	}
}

// listHub answers tools/list with what the caller may see of the gateway's own list of each server:
// who only looks opens no sessions.
func (x *exchange) listHub(ctx context.Context) dispatch.Response {
	if x.msg.Cursor != "" {
		return x.refuse(ctx, noCursor())
	}
	now := x.lists(ctx)
	x.sess.Members.Relists(func(before string) string { return aggregate.WithTools(before, now) }) // of what changes from now on the client is told
	servers, refused := x.reached(ctx)
	if refused != nil {
		return x.refuse(ctx, refused)
	}
	for _, s := range servers {
		if s.found != nil {
			if why := s.list(ctx); why != nil {
				s.part.Clear(why)
			}
		}
	}
	parts := partsOf(servers)
	if x.sess.Waits.Load() {
		wait := new(aggregate.Part)
		wait.Add([]byte(waitTool))
		parts = append(parts, wait)
	}
	return x.joinLists("tools", parts)
}

// noCursor is the refusal of a cursor: lists of all servers have one page.
func noCursor() *refusal.Refusal {
	return &refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID, Message: "the cursor is none that this session was given."}
}

// list takes what the caller may see of the server's tools.
func (s *reached) list(ctx context.Context) *refusal.Refusal {
	seen, err := s.view(ctx, s.found, s.said)
	if err != nil {
		return policyAway()
	}
	if seen.waits {
		s.sess.Waits.Store(true)
	}
	list, known := s.found.Joint, s.found.Known.Digests
	end, err := s.has.Answer.TurnFor(ctx, len(list.Raw)) // each of its tools is written again
	if err != nil {
		return tooManyLists()
	}
	defer end()
	s.sess.Members.Show(s.server, func(tool string) []byte {
		if !seen.visible[tool] {
			return nil
		}
		return known[tool]
	})
	hides := func(t gate.Tool) bool {
		_, one := s.found.Aliases.Shown(s.server, t.Name)
		return seen.hides(t) || !one
	}
	for _, f := range s.found.Faults {
		if f.JointOnly && seen.visible[f.Tool] { // what the caller may not know of is not named
			s.part.LeftOut = append(s.part.LeftOut, aggregate.LeftOut{Server: s.server, Name: f.Tool, Why: f.Why})
		}
	}
	edits := append(list.Clean(hides), around(list.Raw, list.ToolList)...)
	for _, t := range list.Tools {
		if !hides(t) {
			name, _ := s.found.Aliases.Shown(s.server, t.Name)
			titles, err := joint.TitlesOf(s.server, list.Raw, t.Definition)
			if err != nil {
				return &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
			}
			edits = append(append(edits, joint.Say(t.NameValue, name)), titles...)
		}
	}
	if s.part.Elements, err = gate.Plan(list.Raw, edits...); err != nil {
		return &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
	}
	s.part.Size = dispatch.SizeOf(s.part.Elements)
	return nil
}

// around are the edits that leave nothing but the elements of an array.
func around(raw []byte, array gate.Span) []gate.Edit {
	return []gate.Edit{{Span: gate.Span{End: array.Start + 1}}, {Span: gate.Span{Start: array.End - 1, End: len(raw)}}}
}

// gather answers a list whose method policy has to allow: each server that has such a list is asked
// for the caller, and is left out where policy does not allow it there.
func (x *exchange) gather(ctx context.Context) dispatch.Response {
	var params struct {
		Cursor jsontext.Value `json:"cursor"`
	}
	if x.msg.Params.Present() && json.Unmarshal(x.msg.Params.Of(x.msg.Raw), &params) != nil || params.Cursor != nil && params.Cursor.Kind() != 'n' {
		return x.refuse(ctx, noCursor())
	}
	if x.msg.RequestState.Present() || x.msg.InputResponses.Present() {
		return x.refuse(ctx, &refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID, Message: "a list asks nothing, so there is nothing to answer or to go on with."})
	}
	servers, refused := x.reached(ctx)
	if refused != nil {
		return x.refuse(ctx, refused)
	}
	field := aggregate.FieldOf(x.msg.Method)
	servers = slices.DeleteFunc(servers, func(s *reached) bool { return s.found != nil && !s.offers(aggregate.CapabilityOf(field)) })
	var size atomic.Int64
	places, all := make(chan struct{}, maxGathering), sync.WaitGroup{}
	for _, s := range servers {
		if s.found == nil {
			continue
		}
		places <- struct{}{}
		x.guarded(&all, func() {
			defer func() { <-places }()
			s.part.Missing = &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE} // also where asking panics
			s.memory = x.has.Answer.Beside()
			if s.part.Missing = s.take(ctx, field, &size); s.part.Missing != nil {
				size.Add(-int64(s.part.Size))
				s.part.Clear(s.part.Missing)
				s.memory.Keep(0)
			}
		})
	}
	all.Wait()
	unrecorded := slices.ContainsFunc(servers, func(s *reached) bool { return s.unrecorded })
	for _, s := range servers {
		if s.memory != nil {
			x.finally.add(s.memory.Close)
		}
	}
	servers = slices.DeleteFunc(servers, func(s *reached) bool { return s.part.Missing != nil && isDenial(s.part.Missing.Code) })
	out := x.joinLists(field, partsOf(servers))
	out.Unrecorded = unrecorded
	return out
}

// offers reports whether the server said that it has something.
func (s *reached) offers(capability string) bool {
	var has map[string]jsontext.Value
	err := json.Unmarshal(s.greeting.Capabilities.Of(s.greeting.Raw), &has)
	return err == nil && has[capability].Kind() == '{'
}

// isDenial reports whether a code says that policy does not let the caller have something, which is
// no fault of the server's.
func isDenial(code commonv1.Code) bool {
	switch code { //nolint:exhaustive // all others are faults
	case commonv1.Code_CODE_DENIED_BY_RULE, commonv1.Code_CODE_DENIED_BY_DEFAULT, commonv1.Code_CODE_METHOD_DENIED, commonv1.Code_CODE_TOOL_UNKNOWN:
		return true
	default:
		return false
	}
}

// take asks the server for its list, page by page, each as a request of the caller's. What all say
// together has a size, in bytes.
func (s *reached) take(ctx context.Context, field string, size *atomic.Int64) *refusal.Refusal {
	ctx, cancel := context.WithTimeout(ctx, gatherWithin)
	defer cancel()
	s.client, s.sink, s.finally, s.hold = ctx, new(dispatch.Callback), &s.steps, new(time.Duration) // a list neither asks nor waits
	defer s.steps.run()
	until := time.Now().Add(gatherWithin)
	left, refused := s.enter(ctx)
	if refused != nil {
		return refused
	}
	defer left()
	given := make(map[string]bool)
	for range maxGatheredPages {
		if s.target.Timeout = min(s.target.Timeout, time.Until(until)); s.target.Timeout <= 0 || ctx.Err() != nil {
			return &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_TIMEOUT}
		}
		came := collect(s.protocol.route(ctx))
		s.unrecorded = s.unrecorded || came.Unrecorded
		if came.Refusal != nil {
			return came.Refusal
		}
		items, next, err := aggregate.Elements(came.whole, field)
		if err != nil {
			return s.broken(field, commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, "the answer has no list")
		}
		items = s.part.Conform(field, items)
		if !s.add(items, size) {
			return &refusal.Refusal{Code: commonv1.Code_CODE_BODY_TOO_LARGE}
		}
		if next == "" {
			s.target.faults.set(field, s.part.LeftOut)
			return nil
		}
		if given[next] { // a server that goes on without an end
			return s.broken(field, commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, "a page has a cursor that was given before")
		}
		given[next] = true
		if s.msg, err = aggregate.NextPage(s.msg, next, s.limits); err != nil {
			return &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
		}
	}
	return s.broken(field, commonv1.Code_CODE_BODY_TOO_LARGE, fmt.Sprintf("it has more than %d pages", maxGatheredPages))
}

// add adds elements to what the server says, where there is room for them.
func (s *reached) add(items []jsontext.Value, size *atomic.Int64) bool {
	for _, item := range items {
		more := len(item) + perGathered
		if size.Add(int64(more)) > aggregate.MaxList || s.part.Size+more > maxGatheredEach || !s.memory.Add(more) {
			size.Add(-int64(more))
			return false
		}
		s.part.Add(item)
		s.part.Size += perGathered
	}
	return true
}

// joinLists returns one list of those of all servers.
func (x *exchange) joinLists(field string, parts []*aggregate.Part) dispatch.Response {
	members := ""
	if x.resultType != "" {
		members = `"resultType":"` + mcp.ResultComplete + `","ttlMs":0,"cacheScope":"private",`
	}
	return dispatch.Response{Body: aggregate.Join(x.id(), members, field, parts)}
}

// partsOf returns what servers add to a list.
func partsOf(servers []*reached) (out []*aggregate.Part) {
	for _, s := range servers {
		out = append(out, &s.part)
	}
	return out
}
