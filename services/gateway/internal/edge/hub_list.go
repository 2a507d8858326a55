package edge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/joint"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/internal/enum"
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
	// maxGathered is how large a list of all servers may be, in bytes, and maxGatheredEach what one
	// of them may add that is asked for it; those with no room in it are named in it. An element
	// takes perGathered beside its own bytes.
	maxGathered     = 16 << 20
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
	// why it is named as one that is missing, or that may be out of date; nil where it is not.
	why *refusal.Refusal
	// parts are what it adds to a list, size bytes, for which kept is the room.
	parts [][]byte
	size  int
	kept  *room.Holding
	// out are elements that its lists have and that are left out.
	out []leftOut
	// unrecorded says that the outcome of asking it is not on record yet.
	unrecorded bool
}

// missing names a server that is left out of a list, and why.
type missing struct {
	Server string `json:"server"`
	Code   string `json:"code"`
	Why    string `json:"why,omitzero"`
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
		s := &reached{exchange: x.at(server)}
		var err error
		if s.said, err = s.standing(ctx); err != nil {
			return nil, policyAway()
		}
		if !s.said.Some {
			continue
		}
		if fieldOf(x.msg.Method) == "" { // else it is asked, and that is counted
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
	s.why = &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE} // also where looking panics
	var err error
	of := s.protocol.viewOf(s.target)
	if s.found = of.Last(); s.found == nil || !s.target.program() {
		of.Renew(discovery.Fresh) // which goes on for others where this caller waits no longer
		if _, err = of.Found(ctx, discovery.Fresh); err != nil {
			s.why = s.unfound(ctx, err)
		}
		s.found = of.Last()
	}
	if s.found == nil {
		return
	}
	if len(s.found.Greeting.Raw) > maxGreeting { // which every client's initialize would have to read
		s.found, s.why = nil, &refusal.Refusal{Code: commonv1.Code_CODE_BODY_TOO_LARGE}
		return
	}
	if s.greeting, err = greetingOf(s.found); err != nil {
		s.found = nil
		return
	}
	if s.target.program() || time.Since(s.found.At) <= discovery.Fresh {
		s.why = nil
	}
}

// listHub answers tools/list with what the caller may see of the gateway's own list of each server:
// who only looks opens no sessions.
func (x *exchange) listHub(ctx context.Context) dispatch.Response {
	if x.msg.Cursor != "" {
		return x.refuse(ctx, noCursor())
	}
	now := x.lists(ctx)
	x.sess.Members.Relists(func(before string) string { return toolsListed(before, now) }) // of what changes from now on the client is told
	servers, refused := x.reached(ctx)
	if refused != nil {
		return x.refuse(ctx, refused)
	}
	for _, s := range servers {
		if s.found != nil {
			if why := s.list(ctx); why != nil {
				s.parts, s.why = nil, why
			}
		}
	}
	if x.sess.Waits.Load() {
		servers = append(servers, &reached{parts: [][]byte{[]byte(waitTool)}, size: len(waitTool)})
	}
	return x.joinLists("tools", servers)
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
			s.out = append(s.out, leftOut{s.server, f.Tool, f.Why})
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
	if s.parts, err = gate.Plan(list.Raw, edits...); err != nil {
		return &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
	}
	for _, part := range s.parts {
		s.size += len(part)
	}
	return nil
}

// around are the edits that leave nothing but the elements of an array.
func around(raw []byte, array gate.Span) []gate.Edit {
	return []gate.Edit{{Span: gate.Span{End: array.Start + 1}}, {Span: gate.Span{Start: array.End - 1, End: len(raw)}}}
}

// fieldOf is the member of a result that is the list by which a method answers; empty for a method
// whose answer is no list of several servers.
func fieldOf(method string) string {
	switch method {
	case "prompts/list":
		return "prompts"
	case "resources/list":
		return "resources"
	case "resources/templates/list":
		return "resourceTemplates"
	default:
		return ""
	}
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
	field := fieldOf(x.msg.Method)
	servers = slices.DeleteFunc(servers, func(s *reached) bool { return s.found != nil && !s.offers(capabilityOf(field)) })
	var size atomic.Int64
	places, all := make(chan struct{}, maxGathering), sync.WaitGroup{}
	for _, s := range servers {
		if s.found == nil {
			continue
		}
		places <- struct{}{}
		x.guarded(&all, func() {
			defer func() { <-places }()
			s.why = &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE} // also where asking panics
			s.kept = x.has.Answer.Beside()
			if s.why = s.take(ctx, field, &size); s.why != nil {
				size.Add(-int64(s.size))
				s.parts, s.size = nil, 0
				s.kept.Keep(0)
			}
		})
	}
	all.Wait()
	unrecorded := slices.ContainsFunc(servers, func(s *reached) bool { return s.unrecorded })
	for _, s := range servers {
		if s.kept != nil {
			x.finally.add(s.kept.Close)
		}
	}
	servers = slices.DeleteFunc(servers, func(s *reached) bool { return s.why != nil && isDenial(s.why.Code) })
	out := x.joinLists(field, servers)
	out.Unrecorded = unrecorded
	return out
}

// capabilityOf is the capability of a server that has such a list.
func capabilityOf(field string) string {
	if field == "resourceTemplates" {
		return "resources"
	}
	return field
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
	s.client, s.sink, s.finally, s.unattended, s.hold = ctx, new(dispatch.Callback), &s.steps, true, new(time.Duration) // a list neither asks nor waits
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
		items, next, err := elements(came.whole, field)
		if err != nil {
			return s.broken(field, commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, "the answer has no list")
		}
		items = s.conform(field, items)
		if !s.add(items, size) {
			return &refusal.Refusal{Code: commonv1.Code_CODE_BODY_TOO_LARGE}
		}
		if next == "" {
			s.target.faults.set(field, s.out)
			return nil
		}
		if given[next] { // a server that goes on without an end
			return s.broken(field, commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, "a page has a cursor that was given before")
		}
		given[next] = true
		if s.msg, err = page(s.msg, next, s.limits); err != nil {
			return &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
		}
	}
	return s.broken(field, commonv1.Code_CODE_BODY_TOO_LARGE, fmt.Sprintf("it has more than %d pages", maxGatheredPages))
}

// page is the request for the page of a list behind a raw cursor, in the run of the one before.
func page(before *gate.Message, cursor string, limits gate.Limits) (*gate.Message, error) {
	params := `"cursor":` + cursor
	if meta := before.Meta.Object; meta.Present() {
		params += `,"_meta":` + string(meta.Of(before.Raw))
	}
	return gate.Parse(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"%s","params":{%s}}`, before.ID.Of(before.Raw), before.Method, params), limits)
}

// add adds elements to what the server says, where there is room for them.
func (s *reached) add(items []jsontext.Value, size *atomic.Int64) bool {
	for _, item := range items {
		more := len(item) + perGathered
		if size.Add(int64(more)) > maxGathered || s.size+more > maxGatheredEach || !s.kept.Add(more) {
			size.Add(-int64(more))
			return false
		}
		if s.size > 0 {
			s.parts = append(s.parts, []byte(","))
		}
		s.parts = append(s.parts, item)
		s.size += more
	}
	return true
}

// elements are those of the list of an answer that clients can read, and the raw cursor of what
// follows. A server that does not know the method has none.
func elements(raw []byte, field string) (items []jsontext.Value, next string, err error) {
	var answer struct {
		Result map[string]jsontext.Value `json:"result"`
		Error  struct {
			Code float64 `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil || answer.Error.Code == mcp.CodeMethodUnknown {
		return nil, "", err
	}
	if answer.Result[field].Kind() != '[' {
		return nil, "", errNoList
	}
	if err := json.Unmarshal(answer.Result[field], &items); err != nil {
		return nil, "", err
	}
	if cursor := answer.Result["nextCursor"]; cursor.Kind() == '"' && string(cursor) != `""` {
		next = string(cursor)
	}
	return items, next, nil
}

// errNoList means that a server's answer has not the list that was asked for.
var errNoList = errors.New("the server's answer is no list")

// joinLists returns one list of those of all servers, and names in it those that are missing, or as
// they were.
func (x *exchange) joinLists(field string, servers []*reached) dispatch.Response {
	kind := ""
	if x.resultType != "" {
		kind = `"resultType":"` + mcp.ResultComplete + `","ttlMs":0,"cacheScope":"private",`
	}
	body := [][]byte{fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{%s"%s":[`, x.id(), kind, field)}
	var left []missing
	var without []leftOut
	size := 0
	for _, s := range servers {
		if size+s.size > maxGathered {
			s.parts, s.size, s.why = nil, 0, &refusal.Refusal{Code: commonv1.Code_CODE_BODY_TOO_LARGE}
		}
		if s.why != nil {
			left = append(left, missing{Server: s.server, Code: enum.Given(s.why.Code), Why: s.why.Message})
		} else {
			without = append(without, s.out[:min(len(s.out), maxLeftOut-len(without))]...)
		}
		if s.size == 0 {
			continue
		}
		if size > 0 {
			body = append(body, []byte(","))
		}
		body = append(body, s.parts...)
		size += s.size
	}
	end := []byte("]}}")
	if meta, err := metaOf(left, without); err == nil && meta != nil {
		end = fmt.Appendf(nil, `],"_meta":%s}}`, meta)
	}
	return dispatch.Response{Body: append(body, end)}
}
