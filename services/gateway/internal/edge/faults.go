package edge

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcpschema"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// faults are what keeps elements of a server's lists from clients, by the list, as found when it was gathered last. It
// is safe for concurrent use.
type faults struct {
	mu sync.Mutex
	by map[string][]leftOut
}

// set replaces what is known of a list.
func (f *faults) set(list string, all []leftOut) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		f.by = make(map[string][]leftOut)
	}
	f.by[list] = slices.Clone(all[:min(len(all), maxFaults)])
}

// maxFaults is how many faults of a list are kept.
const maxFaults = 100

// Faults returns what keeps elements of a server's lists from clients, as far as is known.
func (e *Edge) Faults(server string) (out []*gatewayv1.ListFault) {
	target, ok := e.targets[server]
	if !ok {
		return nil
	}
	for _, f := range target.found.Faults() {
		out = append(out, &gatewayv1.ListFault{List: "tools", Name: f.Tool, Why: f.Why, JointOnly: f.JointOnly})
	}
	target.faults.mu.Lock()
	defer target.faults.mu.Unlock()
	for _, list := range slices.Sorted(maps.Keys(target.faults.by)) {
		for _, f := range target.faults.by[list] {
			out = append(out, &gatewayv1.ListFault{List: list, Name: f.Name, Why: f.Why, JointOnly: true})
		}
	}
	return out
}

// leftOut names an element of a server's list that is left out of a list, and why.
type leftOut struct {
	Server string `json:"server"`
	Name   string `json:"name,omitzero"`
	Why    string `json:"why"`
}

// maxLeftOut is how many of them a list names.
const maxLeftOut = 200

// broken refuses a list that can't be read, and notes why.
func (s *reached) broken(field string, code commonv1.Code, why string) *refusal.Refusal {
	s.out = nil
	s.target.faults.set(field, []leftOut{{Why: "the list can't be read: " + why}})
	return &refusal.Refusal{Code: code, Message: "its list can't be read: " + why + "."}
}

// conform returns the elements of a list that have MCP's form, and notes the others: a client that checks them would
// refuse the whole list, and with it those of all other servers.
func (s *reached) conform(field string, items []jsontext.Value) []jsontext.Value {
	var out []jsontext.Value
	for _, item := range items {
		element, why := mcpschema.Conform(field, item)
		if why == "" {
			out = append(out, element)
			continue
		}
		var has struct {
			Name jsontext.Value `json:"name"`
		}
		_ = json.Unmarshal(item, &has) // what has no name is left out, too
		if name := unquote(has.Name); len(s.out) < maxLeftOut {
			s.out = append(s.out, leftOut{s.server, strings.ToValidUTF8(name[:min(len(name), maxToolName)], ""), "it has not the form that MCP gives it: " + why})
		}
	}
	return out
}

// metaOf returns `_meta` of a list of many servers; nil if there is nothing to say.
func metaOf(left []missing, without []leftOut) ([]byte, error) {
	meta := make(map[string]any)
	if len(left) > 0 {
		meta[mcp.MetaUnavailable] = left
	}
	if len(without) > 0 {
		meta[mcp.MetaLeftOut] = without
	}
	if len(meta) == 0 {
		return nil, nil
	}
	return json.Marshal(meta, json.Deterministic(true))
}
