package cli

import (
	"fmt"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/observe"
	"github.com/sluice-mesh/sluice/services/policy"
)

// describeObserved describes the parts of the policy that are in observe mode and therefore not enforced. It returns a
// line for each of the first ten parts, and a line with the number of the other parts. The parameter count is the
// number of all parts.
func describeObserved(parts []*policyv1.ObservedPolicy, count int) []string {
	const maxLines = 10
	var lines []string
	for _, p := range parts[:min(len(parts), maxLines)] {
		lines = append(lines, policy.DescribeObserved(p))
	}
	if more := count - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return lines
}

// checkObserved returns warnings about servers that the running mesh has in observe mode, although the configuration no
// longer contains `mode: observe`. The mesh must be restarted to enforce the policy for them.
func checkObserved(f *config.File, parts []*policyv1.ObservedPolicy) (out []checkResult) {
	for _, p := range parts {
		own, known := f.Servers[p.GetServer()]
		switch {
		case p.GetRule() != nil:
			continue // changes to documents take effect without a restart
		case p.GetServer() == "" && (f.Mode == observe.Observe || f.Name() == ""),
			p.GetServer() != "" && (!known || own.Mode == observe.Observe):
			continue
		}
		out = append(out, checkResult{
			stateWarning, "observed", "the running mesh still observes " + policy.DescribeObserved(p) + ", but the configuration does not",
			"restart the mesh, or its policy service, to enforce it",
		})
	}
	return out
}
