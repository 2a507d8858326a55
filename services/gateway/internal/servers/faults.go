package servers

import (
	"maps"
	"slices"
	"sync"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/aggregate"
)

// maxFaults limits how many faults are stored for one list.
const maxFaults = 100

// faults contains the reasons why some of a server's elements are missing from the lists at the URL for all servers.
// For each list, it contains the reasons from the last time that the list was joined. A faults value is safe for
// concurrent use.
type faults struct {
	mu     sync.Mutex
	byList map[string][]aggregate.LeftOut
}

// SetFaults replaces the faults of one list at the URL for all servers. It stores at most 100 faults.
func (f *faults) SetFaults(list string, all []aggregate.LeftOut) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byList == nil {
		f.byList = make(map[string][]aggregate.LeftOut)
	}
	f.byList[list] = slices.Clone(all[:min(len(all), maxFaults)])
}

// Faults returns the known reasons why some elements are missing from the server's lists.
func (s *Server) Faults() (out []*gatewayv1.ListFault) {
	for _, f := range s.own.Faults() {
		out = append(out, &gatewayv1.ListFault{List: "tools", Name: f.Tool, Why: f.Why, JointOnly: f.AggregateOnly})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, list := range slices.Sorted(maps.Keys(s.byList)) {
		for _, f := range s.byList[list] {
			out = append(out, &gatewayv1.ListFault{List: list, Name: f.Name, Why: f.Why, JointOnly: true})
		}
	}
	return out
}
