package allservers

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
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

const (
	// DiscoveryTimeout limits how long a request waits for the gateway to discover servers again. It waits for servers
	// whose discovery is missing or outdated.
	DiscoveryTimeout = 3 * time.Second
	// maxGreeting is the maximum size, in bytes, of a server's answer to initialize. At the URL for all servers, a server
	// with a larger answer counts as unavailable.
	maxGreeting = 256 << 10
	// gatherTimeout is the maximum time for reading all pages of one server's list. maxGatheredPages is the maximum number
	// of pages. A server's list with more pages is omitted.
	gatherTimeout    = 10 * time.Second
	maxGatheredPages = 20
	// MaxConcurrent is the maximum number of servers to which the gateway sends requests at the same time for one message.
	MaxConcurrent = 8
	// maxServerBytes is the maximum size, in bytes, of one server's elements in a combined list. The size of each element
	// includes elementOverhead additional bytes.
	maxServerBytes  = 4 << 20
	elementOverhead = 64
)

// Accessible is a server that the caller may be allowed to call.
type Accessible struct {
	Member

	Allowed visibility.Access
	// Found is the most recent discovery of the server, of any age, or nil if there is none. greeting is the server's
	// answer to initialize in this discovery.
	Found    *discovery.Result
	greeting *jsonrpc.Answer
	// part contains the server's elements of the list. memory is the memory budget for these elements.
	part   aggregate.Part
	memory *limits.Memory
	// unrecorded is true if the outcome of a request to the server is not in the journal yet.
	unrecorded bool
}

// Accessible returns the servers that the caller may be allowed to call, sorted by name. It waits up to 3 s for the
// discovery of servers whose discovery is missing or outdated.
func (x All) Accessible(ctx context.Context) ([]*Accessible, *refusal.Refusal) {
	if err := x.Slot.Admit(ctx); err != nil {
		return nil, dispatch.NotAdmitted(err)
	}
	var out []*Accessible
	var all sync.WaitGroup
	defer all.Wait() // runs after cancel
	ctx, cancel := context.WithTimeout(ctx, DiscoveryTimeout)
	defer cancel()
	for _, server := range slices.Sorted(maps.Keys(x.Servers)) {
		s := &Accessible{Member: x.ForServer(server), part: aggregate.Part{Server: server}}
		var err error
		if s.Allowed, err = s.Access(ctx); err != nil {
			return nil, dispatch.PolicyUnavailable()
		}
		if !s.Allowed.MayCall {
			continue
		}
		// Other requests are counted here, once for each server. A list that needs requests to the servers is counted later,
		// for each page.
		if aggregate.FieldOf(x.Message.Method) == "" {
			if refused := x.Pipeline.CountExempt(pipeline.ExemptMessage{Principal: x.Principal, Server: server, Method: x.Message.Method}); refused != nil {
				return nil, refused
			}
		}
		out = append(out, s)
		x.Go(&all, func() { s.discover(ctx) })
	}
	all.Wait()
	return out, nil
}

// discover sets Found to the gateway's discovery of the server. For a stdio server, an existing discovery of any age is
// used, so that no process has to be started. If another server does not respond, the most recent discovery is used.
// Calls to that server will then report the problem.
func (s *Accessible) discover(ctx context.Context) {
	s.part.Missing = &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE} // remains set if the discovery panics
	var err error
	source := s.Protocol.DiscoveryOf(s.Server)
	if s.Found = source.Last(); s.Found == nil || !s.Server.IsProgram() {
		source.RefreshInBackground(discovery.Fresh) // continues for other callers if this caller disconnects
		if _, err = source.Get(ctx, discovery.Fresh); err != nil {
			s.part.Missing = s.DiscoveryFailed(ctx, err)
		}
		s.Found = source.Last()
	}
	if s.Found == nil {
		return
	}
	if len(s.Found.Greeting.Raw) > maxGreeting { // such a large answer would have to be parsed again for the initialize request of each client
		s.Found, s.part.Missing = nil, &refusal.Refusal{Code: commonv1.Code_CODE_BODY_TOO_LARGE}
		return
	}
	if s.greeting, err = servers.Greeting(s.Found); err != nil {
		s.Found = nil
		return
	}
	if s.Server.IsProgram() || time.Since(s.Found.At) <= discovery.Fresh {
		s.part.Missing = nil
	}
}

// listTools responds to tools/list with the tools that the caller may see in the gateway's own lists of all servers. It
// opens no sessions with servers.
func (x All) listTools(ctx context.Context) dispatch.Response {
	if x.Message.Cursor != "" {
		return x.Refuse(ctx, noCursor())
	}
	now := x.ListState(ctx)
	// From now on, the client is notified only of changes after this list.
	x.Session.Members.UpdateListState(func(before string) string { return aggregate.MarkToolsRead(before, now) })
	servers, refused := x.Accessible(ctx)
	if refused != nil {
		return x.Refuse(ctx, refused)
	}
	for _, s := range servers {
		if s.Found != nil {
			if why := s.selectTools(ctx); why != nil {
				s.part.Clear(why)
			}
		}
	}
	parts := partsOf(servers)
	if x.Session.ListsApprovalTool.Load() {
		wait := new(aggregate.Part)
		wait.Add([]byte(dispatch.WaitTool))
		parts = append(parts, wait)
	}
	return x.joinLists("tools", parts)
}

// noCursor returns the refusal for a request with a cursor. At the URL for all servers, lists have only one page.
func noCursor() *refusal.Refusal {
	return &refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID, Message: "the cursor was not given in this session."}
}

func (s *Accessible) selectTools(ctx context.Context) *refusal.Refusal {
	seen, err := s.Visibility.View(ctx, s.Viewer(), s.Found, s.Allowed.Revision)
	if err != nil {
		return dispatch.FilterFailed(err)
	}
	if seen.NeedsApproval {
		s.Session.ListsApprovalTool.Store(true)
	}
	list, known := s.Found.AggregateList, s.Found.Known.Digests
	end, err := s.Slot.Answer.TimesliceFor(ctx, len(list.Raw)) // encoding all tools again takes processor time
	if err != nil {
		return dispatch.FilterFailed(visibility.ErrBusy)
	}
	defer end()
	s.Session.Members.SetShown(s.ServerName, func(tool string) []byte {
		if !seen.Visible[tool] {
			return nil
		}
		return known[tool]
	})
	hides := func(t jsonrpc.Tool) bool {
		_, one := s.Found.Aliases.DisplayName(s.ServerName, t.Name)
		return seen.Hides(t) || !one
	}
	for _, f := range s.Found.Faults {
		if f.AggregateOnly && seen.Visible[f.Tool] { // do not name a hidden tool
			s.part.LeftOut = append(s.part.LeftOut, aggregate.LeftOut{Server: s.ServerName, Name: f.Tool, Why: f.Why})
		}
	}
	edits := append(list.Clean(hides), keepElements(list.Raw, list.ToolList)...)
	for _, t := range list.Tools {
		if !hides(t) {
			name, _ := s.Found.Aliases.DisplayName(s.ServerName, t.Name)
			titles, err := aggregate.CombineTitles(s.ServerName, list.Raw, t.Definition)
			if err != nil {
				return &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
			}
			edits = append(append(edits, aggregate.ReplaceText(t.NameValue, name)), titles...)
		}
	}
	if s.part.Elements, err = jsonrpc.PlanEdits(list.Raw, edits...); err != nil {
		return &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
	}
	s.part.Size = dispatch.SizeOf(s.part.Elements)
	return nil
}

// keepElements returns the edits that remove everything from a message except the elements of an array.
func keepElements(raw []byte, array jsonrpc.Span) []jsonrpc.Edit {
	return []jsonrpc.Edit{{Span: jsonrpc.Span{End: array.Start + 1}}, {Span: jsonrpc.Span{Start: array.End - 1, End: len(raw)}}}
}

// gatherList responds to a list request whose method needs a rule. On behalf of the caller, it requests the list from
// each server that declares the capability. It omits servers for which no rule allows the list.
func (x All) gatherList(ctx context.Context) dispatch.Response {
	var params struct {
		Cursor jsontext.Value `json:"cursor"`
	}
	if x.Message.Params.Present() && json.Unmarshal(x.Message.Params.Of(x.Message.Raw), &params) != nil || params.Cursor != nil && params.Cursor.Kind() != 'n' {
		return x.Refuse(ctx, noCursor())
	}
	if x.Message.RequestState.Present() || x.Message.InputResponses.Present() {
		return x.Refuse(ctx, &refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID, Message: "a list has no requests for the client; send it without inputResponses and requestState."})
	}
	servers, refused := x.Accessible(ctx)
	if refused != nil {
		return x.Refuse(ctx, refused)
	}
	field := aggregate.FieldOf(x.Message.Method)
	servers = slices.DeleteFunc(servers, func(s *Accessible) bool { return s.Found != nil && !s.Offers(aggregate.CapabilityOf(field)) })
	var size atomic.Int64
	slots, all := make(chan struct{}, MaxConcurrent), sync.WaitGroup{}
	for _, s := range servers {
		if s.Found == nil {
			continue
		}
		slots <- struct{}{}
		x.Go(&all, func() {
			defer func() { <-slots }()
			s.part.Missing = &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE} // remains set if the request panics
			s.memory = x.Slot.Answer.Sibling()
			if s.part.Missing = s.gatherPages(ctx, field, &size); s.part.Missing != nil {
				size.Add(-int64(s.part.Size))
				s.part.Clear(s.part.Missing)
				s.memory.Settle(0)
			}
		})
	}
	all.Wait()
	unrecorded := slices.ContainsFunc(servers, func(s *Accessible) bool { return s.unrecorded })
	for _, s := range servers {
		if s.memory != nil {
			x.Cleanup.Add(s.memory.Close)
		}
	}
	servers = slices.DeleteFunc(servers, func(s *Accessible) bool { return s.part.Missing != nil && isDenial(s.part.Missing.Code) })
	out := x.joinLists(field, partsOf(servers))
	out.Unrecorded = unrecorded
	return out
}

// Offers reports whether the server has declared a capability.
func (s *Accessible) Offers(capability string) bool {
	var capabilities map[string]jsontext.Value
	err := json.Unmarshal(s.greeting.Capabilities.Of(s.greeting.Raw), &capabilities)
	return err == nil && capabilities[capability].Kind() == '{'
}

func isDenial(code commonv1.Code) bool {
	switch code { //nolint:exhaustive // all others are faults
	case commonv1.Code_CODE_DENIED_BY_RULE, commonv1.Code_CODE_DENIED_BY_DEFAULT, commonv1.Code_CODE_METHOD_DENIED, commonv1.Code_CODE_TOOL_UNKNOWN:
		return true
	default:
		return false
	}
}

// gatherPages requests the server's list page by page on behalf of the caller. It adds the size of the elements to
// total, which is the size, in bytes, of the elements of all servers.
func (s *Accessible) gatherPages(ctx context.Context, field string, total *atomic.Int64) *refusal.Refusal {
	ctx, cancel := context.WithTimeout(ctx, gatherTimeout)
	defer cancel()
	// During this request, the server cannot send requests to the client. The request does not wait for approvers.
	s.ClientCtx, s.Sink, s.Cleanup, s.Hold = ctx, new(dispatch.Callback), &s.OwnCleanup, new(time.Duration)
	defer s.OwnCleanup.Run()
	deadline := time.Now().Add(gatherTimeout)
	release, refused := s.Begin(ctx)
	if refused != nil {
		return refused
	}
	defer release()
	cursors := make(map[string]bool)
	for range maxGatheredPages {
		answer, refused := s.requestPage(ctx, deadline)
		if refused != nil {
			return refused
		}
		items, next, err := aggregate.Elements(answer, field)
		if err != nil {
			return s.unreadableList(field, commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, "the answer has no list")
		}
		items = s.part.Conform(field, items)
		if !s.addElements(items, total) {
			return &refusal.Refusal{Code: commonv1.Code_CODE_BODY_TOO_LARGE}
		}
		if next == "" {
			s.Server.SetFaults(field, s.part.LeftOut)
			return nil
		}
		if cursors[next] { // without this check, a server could send pages indefinitely
			return s.unreadableList(field, commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, "a page repeats the cursor of an earlier page")
		}
		cursors[next] = true
		if s.Message, err = aggregate.NextPage(s.Message, next, s.Limits); err != nil {
			return &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
		}
	}
	return s.unreadableList(field, commonv1.Code_CODE_BODY_TOO_LARGE, fmt.Sprintf("it has more than %d pages", maxGatheredPages))
}

// requestPage requests one page of the server's list and returns the server's answer. If the deadline for the whole
// list passes, requestPage returns a timeout refusal, even if another timer has ended the request.
func (s *Accessible) requestPage(ctx context.Context, deadline time.Time) ([]byte, *refusal.Refusal) {
	late := &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_TIMEOUT}
	if s.Timeout = min(s.Timeout, time.Until(deadline)); s.Timeout <= 0 || ctx.Err() != nil {
		return nil, late
	}
	response := protocol.Copy(s.Protocol.Route(ctx))
	s.unrecorded = s.unrecorded || response.Unrecorded
	if response.Refusal != nil && time.Until(deadline) <= 0 {
		return nil, late
	}
	return response.Joined, response.Refusal
}

// addElements adds elements to the server's part of the list. It returns false if they exceed a limit of the list or
// the memory budget.
func (s *Accessible) addElements(items []jsontext.Value, total *atomic.Int64) bool {
	for _, item := range items {
		more := len(item) + elementOverhead
		if total.Add(int64(more)) > aggregate.MaxList || s.part.Size+more > maxServerBytes || !s.memory.Add(more) {
			total.Add(-int64(more))
			return false
		}
		s.part.Add(item)
		s.part.Size += elementOverhead
	}
	return true
}

// joinLists returns a response with one list that contains the parts of all servers.
func (x All) joinLists(field string, parts []*aggregate.Part) dispatch.Response {
	members := ""
	if x.ResultType != "" {
		members = `"resultType":"` + mcp.ResultComplete + `","ttlMs":0,"cacheScope":"private",`
	}
	return dispatch.Response{Body: aggregate.Join(x.ID(), members, field, parts)}
}

func partsOf(servers []*Accessible) (out []*aggregate.Part) {
	for _, s := range servers {
		out = append(out, &s.part)
	}
	return out
}
