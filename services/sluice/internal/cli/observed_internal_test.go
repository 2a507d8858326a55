package cli

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

func TestDescribeObserved_PrintsTenLines(t *testing.T) {
	t.Parallel()
	var parts []*policyv1.ObservedPolicy
	var want []string
	for i := range 11 {
		parts = append(parts, &policyv1.ObservedPolicy{Rule: &policyv1.RuleRef{Document: "p", Rule: fmt.Sprint("r", i)}, Until: timestamppb.New(time.Date(2026, 12, 20, 0, 0, 0, 0, time.UTC))})
		want = append(want, fmt.Sprintf("rule p/r%d, until 2026-12-20", i))
	}
	for count, lines := range map[int][]string{0: nil, 10: want[:10], 11: append(want[:10:10], "and 1 more"), 500: append(want[:10:10], "and 490 more")} {
		if diff := cmp.Diff(lines, describeObserved(parts[:min(count, len(parts))], count)); diff != "" {
			t.Errorf("%d parts (-want +got):\n%s", count, diff)
		}
	}
}
