package engine

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

// A Selector selects calls by the fields that are set. Server selects the calls to a server. Agent and Tenant select
// calls for which the caller, or a principal in its delegation chain, has both this agent and this tenant. The zero
// Selector selects all calls.
type Selector struct {
	// Agent is the name or the subject of an agent, or the id of an agent of the mesh.
	Agent string
	// Server is the configured name of a server. Tenant is the tenant of a caller or principal.
	Server, Tenant string
}

// A Stop is an emergency stop by an operator. It refuses all calls that its Selector selects.
type Stop struct {
	Selector

	// Reason is the reason that the operator gave. Callers see it.
	Reason string
}

// Stops contains the emergency stops that are in force. The zero Stops contains none.
type Stops struct {
	bySelector map[Selector]string // reasons of the stops
	sum        [sha256.Size]byte
}

// NewStops returns Stops that contain the given stops. If several stops have the same selector, only the first one
// counts.
func NewStops(list []Stop) Stops {
	out := Stops{bySelector: make(map[Selector]string, len(list))}
	for _, s := range list {
		if _, ok := out.bySelector[s.Selector]; !ok {
			out.bySelector[s.Selector] = s.Reason
		}
	}
	var form canonicalForm
	ordered := make([]Selector, 0, len(out.bySelector))
	for s := range out.bySelector {
		ordered = append(ordered, s)
	}
	slices.SortFunc(ordered, Selector.compare)
	for _, s := range ordered {
		for _, text := range []string{s.Tenant, s.Agent, s.Server, out.bySelector[s]} {
			form.text(text)
		}
	}
	if len(ordered) > 0 {
		out.sum = sha256.Sum256(form)
	}
	return out
}

func (s Selector) compare(o Selector) int {
	return cmp.Or(cmp.Compare(s.Tenant, o.Tenant), cmp.Compare(s.Agent, o.Agent), cmp.Compare(s.Server, o.Server))
}

// Sum returns a digest of the selectors and reasons of all stops. It is zero if there are no stops.
func (s Stops) Sum() [sha256.Size]byte { return s.sum }

// WithStops returns a copy of the set that contains the given stops instead of its own.
func (s *Set) WithStops(stops Stops) *Set {
	next := *s
	next.stops = stops
	if s.enforced != nil {
		next.enforced = s.enforced.WithStops(stops)
	}
	return &next
}

// Stops returns the stops of the set.
func (s *Set) Stops() Stops { return s.stops }

// find returns the most general stop that refuses a call, and the index of the principal to whom the stop applies. It
// returns false if no stop refuses the call.
func (s Stops) find(call *Call) (stop Stop, chain int, found bool) {
	if len(s.bySelector) == 0 {
		return Stop{}, 0, false
	}
	for _, server := range []string{"", call.Server} {
		for i := range call.Subject.size() {
			p := call.Subject.at(i)
			for _, agent := range []string{"", p.Agent, p.Name, strings.TrimPrefix(p.Name, "agent:"+p.Tenant+"/")} {
				for _, tenant := range []string{"", p.Tenant} {
					at := Selector{Agent: agent, Server: server, Tenant: tenant}
					if reason, ok := s.bySelector[at]; ok {
						return Stop{at, reason}, i, true
					}
				}
			}
		}
	}
	return Stop{}, 0, false
}

// decideStop returns the decision on a call that a stop refuses. It returns false if no stop refuses the call.
func (s *Set) decideStop(call *Call) (Decision, bool) {
	stop, chain, found := s.stops.find(call)
	if !found {
		return Decision{}, false
	}
	return Decision{Code: Stopped, Message: stop.message(), ChainIndex: chain}, true
}

// stopsNotification reports whether a stop refuses a protocol notification. A stop never refuses the notification that
// a server's list has changed, so that clients know the current lists when the stop ends.
func (s *Set) stopsNotification(call *Call) bool {
	fromServer := []string{"notifications/tools/list_changed", "notifications/prompts/list_changed", "notifications/resources/list_changed"}
	if !slices.Contains(mcpmethod.Notifications(), call.Method) || slices.Contains(fromServer, call.Method) || refusal(call) != "" {
		return false
	}
	_, _, stopped := s.stops.find(call)
	return stopped
}

// message returns the message for callers. It contains the reason for the stop, the calls that the stop refuses, and
// the command that ends the stop.
func (s Stop) message() string {
	reason := strings.TrimSpace(s.Reason)
	if !strings.HasSuffix(reason, ".") && !strings.HasSuffix(reason, "!") && !strings.HasSuffix(reason, "?") {
		reason += "."
	}
	return fmt.Sprintf("%s An operator has stopped %s. Do not repeat the call: it is refused until an operator runs `sluice resume %s`.",
		reason, s.Selector, s.flags())
}

// String describes the calls that the selector selects.
func (s Selector) String() string {
	if s == (Selector{}) {
		return "all calls"
	}
	text := "all calls"
	if s.Agent != "" {
		text += " of agent " + s.Agent
	}
	if s.Tenant != "" {
		text += " of tenant " + s.Tenant
	}
	if s.Server != "" {
		text += " to server " + s.Server
	}
	return text
}

// flags returns the flags of `sluice resume` for this selector.
func (s Selector) flags() string {
	var out []string
	for _, one := range []struct{ flag, value string }{{"--agent", s.Agent}, {"--server", s.Server}, {"--tenant", s.Tenant}} {
		if one.value != "" {
			out = append(out, one.flag+" "+shellWord(one.value))
		}
	}
	if len(out) == 0 {
		return "--all"
	}
	return strings.Join(out, " ")
}

// shellWord returns a word in shell syntax. It adds quotes if the word needs them.
func shellWord(word string) string {
	plain := func(r rune) bool { return r < 0x80 && (toolByte(byte(r)) || r == ':') }
	if strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'"'"'`) + "'"
}
