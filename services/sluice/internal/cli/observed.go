package cli

import (
	"fmt"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy"
)

// describeObserved returns a line for each of the first ten parts of the policy that are only observed, and a line with
// the number of the others. count is the number of all parts.
func describeObserved(parts []*policyv1.ObservedPolicy, count int) []string {
	const most = 10
	var lines []string
	for _, p := range parts[:min(len(parts), most)] {
		lines = append(lines, policy.DescribeObserved(p))
	}
	if more := count - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return lines
}
