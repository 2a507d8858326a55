package edge

import (
	"maps"
	"slices"
	"sync"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/aggregate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// faults are the reasons why elements of a server's lists are left out, by list, as of the last time that the list was
// gathered. It is safe for concurrent use.
type faults struct {
	mu sync.Mutex
	by map[string][]aggregate.LeftOut
}

// set replaces the faults of a list. It keeps the first maxFaults.
func (f *faults) set(list string, all []aggregate.LeftOut) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		f.by = make(map[string][]aggregate.LeftOut)
	}
	f.by[list] = slices.Clone(all[:min(len(all), maxFaults)])
}

const maxFaults = 100

// Faults returns the known reasons why elements of a server's lists are left out; nil for an unknown server.
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

// broken returns the refusal of a list that can't be read, and records the reason as a fault.
func (s *reached) broken(field string, code commonv1.Code, why string) *refusal.Refusal {
	s.part.LeftOut = nil
	s.target.faults.set(field, []aggregate.LeftOut{{Why: "the list can't be read: " + why}})
	return &refusal.Refusal{Code: code, Message: "its list can't be read: " + why + "."}
}
