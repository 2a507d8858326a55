package edge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/joint"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

const (
	// foundWithin is for how long a list waits for servers of which the gateway knows nothing yet, or
	// nothing that counts any more.
	foundWithin = 3 * time.Second
	// gatherWithin bounds one server's page of a list, maxGathering how many servers are asked at a
	// time, and maxGatheredPages how many pages one has.
	gatherWithin     = 10 * time.Second
	maxGathering     = 8
	maxGatheredPages = 20
	// maxGathered is how large a list of all servers may be, in bytes; those with no room in it are
	// named in it.
	maxGathered = 16 << 20
)

// reached is one of the servers on which the caller could come by something.
type reached struct {
	*exchange

	said  reach.Standing
	found *discovery.Found
	// greeting is what it says that it has.
	greeting *gate.Answer
	// why it is left out; nil where it is not.
	why *refusal.Refusal
	// parts are what it adds to a list.
	parts [][]byte
	size  int
}

// missing names a server that is left out of a list, and why.
type missing struct {
	Server string `json:"server"`
	Code   string `json:"code"`
}

// reached returns the servers on which the caller could come by something, by their names. One of
// which nothing is known holds the others up for 3 s at the most.
func (x *exchange) reached(ctx context.Context) ([]*reached, *refusal.Refusal) {
	ctx, cancel := context.WithTimeout(ctx, foundWithin)
	defer cancel()
	var out []*reached
	var all sync.WaitGroup
	for _, server := range slices.Sorted(maps.Keys(x.targets)) {
		s := &reached{exchange: x.at(server)}
		var err error
		if s.said, err = s.standing(ctx); err != nil {
			all.Wait()
			return nil, policyAway()
		}
		if !s.said.Some {
			continue
		}
		if refused := x.deps.Pipeline.Pass(pipeline.Passing{Principal: x.principal, Server: server, Method: x.msg.Method}); refused != nil {
			all.Wait()
			return nil, refused
		}
		out = append(out, s)
		all.Go(func() { s.find(ctx) })
	}
	all.Wait()
	return out, nil
}

// find finds what the gateway knows of the server. A program that nobody uses is not started for it.
func (s *reached) find(ctx context.Context) {
	var err error
	if s.found = s.target.found.Last(); s.found == nil || !s.target.program() {
		s.target.found.Renew(discovery.Fresh) // which goes on for others where this caller waits no longer
		if s.found, err = s.target.found.Found(ctx, discovery.Fresh); err != nil {
			s.why = s.unfound(ctx, err)
			return
		}
	}
	if s.greeting, err = greetingOf(s.found); err != nil {
		s.why = &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
	}
}

// listMany answers tools/list with what the caller may see of the gateway's own list of each server:
// who only looks opens no sessions.
func (x *exchange) listMany(ctx context.Context) {
	out := x.newWriter()
	if x.msg.Cursor != "" {
		x.refuse(ctx, out, &refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID, Message: "the cursor is none that this session was given."})
		return
	}
	if err := x.has.Admit(ctx); err != nil {
		x.refuse(ctx, out, notAdmitted(err))
		return
	}
	servers, refused := x.reached(ctx)
	if refused != nil {
		x.refuse(ctx, out, refused)
		return
	}
	for _, s := range servers {
		if s.why == nil {
			s.why = s.list(ctx)
		}
	}
	if x.sess.Waits.Load() {
		servers = append(servers, &reached{parts: [][]byte{[]byte(waitTool)}, size: len(waitTool)})
	}
	x.writeList(out, "tools", servers)
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
	list := s.found.List
	hides := func(t gate.Tool) bool {
		_, one := s.found.Aliases.Shown(s.server, t.Name)
		return seen.hides(t) || !one
	}
	edits := append(list.Clean(hides), around(list.Raw, list.ToolList)...)
	for _, t := range list.Tools {
		if !hides(t) {
			name, _ := s.found.Aliases.Shown(s.server, t.Name)
			edits = append(edits, joint.Say(t.NameValue, name))
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
func (x *exchange) gather(ctx context.Context) {
	out := x.newWriter()
	if err := x.has.Admit(ctx); err != nil {
		x.refuse(ctx, out, notAdmitted(err))
		return
	}
	servers, refused := x.reached(ctx)
	if refused != nil {
		x.refuse(ctx, out, refused)
		return
	}
	field := fieldOf(x.msg.Method)
	servers = slices.DeleteFunc(servers, func(s *reached) bool { return s.why == nil && !s.offers(capabilityOf(field)) })
	var room atomic.Int64
	room.Store(maxGathered)
	places, all := make(chan struct{}, maxGathering), sync.WaitGroup{}
	for _, s := range servers {
		if s.why != nil {
			continue
		}
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			s.why = s.take(ctx, field, &room)
		})
	}
	all.Wait()
	servers = slices.DeleteFunc(servers, func(s *reached) bool { return s.why != nil && isDenial(s.why.Code) })
	x.writeList(out, field, servers)
}

// capabilityOf is the capability of a server that has such a list.
func capabilityOf(field string) string {
	if field == "resourceTemplates" {
		return "resources"
	}
	return field
}

// offers tells whether the server said that it has something.
func (s *reached) offers(capability string) bool {
	var has map[string]jsontext.Value
	err := json.Unmarshal(s.greeting.Capabilities.Of(s.greeting.Raw), &has)
	return err == nil && has[capability].Kind() == '{'
}

// isDenial tells whether a code says that policy does not let the caller have something, which is
// no fault of the server's.
func isDenial(code commonv1.Code) bool {
	switch code { //nolint:exhaustive // all others are faults
	case commonv1.Code_CODE_DENIED_BY_RULE, commonv1.Code_CODE_DENIED_BY_DEFAULT, commonv1.Code_CODE_METHOD_DENIED:
		return true
	default:
		return false
	}
}

// take asks the server for its list, page by page, each as a request of the caller's. What all say
// together is room, in bytes.
func (s *reached) take(ctx context.Context, field string, room *atomic.Int64) *refusal.Refusal {
	unreadable := &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
	s.target.Timeout = min(s.target.Timeout, gatherWithin)
	left, refused := s.enter(ctx)
	if refused != nil {
		return refused
	}
	defer left()
	s.r = s.r.Clone(ctx)
	s.r.Header["Accept"] = []string{"application/json"} // nobody is asked anything for a list
	for range maxGatheredPages {
		v := &visitor{header: make(http.Header)}
		s.w, s.inside = v, v
		s.route(ctx)
		v.take()
		if v.done.Refusal != nil {
			return v.done.Refusal
		}
		items, next, err := elements(v.done.Answer, field)
		if err != nil || !s.add(items, room) {
			s.parts, s.size = nil, 0
			return unreadable
		}
		if next == "" {
			return nil
		}
		if s.msg, err = gate.Parse(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"%s","params":{"cursor":%s}}`, s.id(), s.msg.Method, next), s.limits); err != nil {
			return unreadable
		}
	}
	return nil
}

// add adds elements to what the server says, where there is room for them.
func (s *reached) add(items []byte, room *atomic.Int64) bool {
	if len(items) == 0 {
		return true
	}
	if s.size > 0 {
		s.parts = append(s.parts, []byte(","))
	}
	s.parts = append(s.parts, items)
	s.size += len(items) + 1
	return room.Add(-int64(len(items))) >= 0
}

// elements are what stands in the list of an answer, and the raw cursor of what follows. A server
// that does not know the method has none.
func elements(raw []byte, field string) (items []byte, next string, err error) {
	var answer struct {
		Result map[string]jsontext.Value `json:"result"`
		Error  struct {
			Code float64 `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil || answer.Error.Code == mcp.CodeMethodUnknown {
		return nil, "", err
	}
	list := answer.Result[field]
	if list.Kind() != '[' {
		return nil, "", errNoList
	}
	if cursor := answer.Result["nextCursor"]; cursor.Kind() == '"' && string(cursor) != `""` {
		next = string(cursor)
	}
	return bytes.TrimSpace(list[1 : len(list)-1]), next, nil
}

// errNoList means that a server's answer has not the list that was asked for.
var errNoList = errors.New("the server's answer is no list")

// writeList writes one list of those of all servers, and names in it those that are left out.
func (x *exchange) writeList(out *writer, field string, servers []*reached) {
	body := [][]byte{fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"%s":[`, x.id(), field)}
	var size int
	var left []missing
	for _, s := range servers {
		if size += s.size; s.why == nil && size > maxGathered {
			s.why = &refusal.Refusal{Code: commonv1.Code_CODE_BODY_TOO_LARGE}
		}
		switch {
		case s.why != nil:
			left = append(left, missing{Server: s.server, Code: enum.Given(s.why.Code)})
		case s.size > 0 && len(body) > 1:
			body = append(append(body, []byte(",")), s.parts...)
		default:
			body = append(body, s.parts...)
		}
	}
	end := []byte("]}}")
	if meta, err := json.Marshal(map[string][]missing{mcp.MetaUnavailable: left}); err == nil && len(left) > 0 {
		end = fmt.Appendf(nil, `],"_meta":%s}}`, meta)
	}
	out.message(append(body, end)...)
}
