package cli

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/observe"
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

// `mode: observe` was removed from a server's configuration, but the running mesh still does not enforce the policy for
// this server. `doctor` warns about this. It does not warn about policy documents, because they take effect without a
// restart. It does not warn about servers that the configuration does not have.
func TestCheckObserved_WarnsIfTheMeshWasNotRestarted(t *testing.T) {
	t.Parallel()
	f := config.Default()
	f.Servers = map[string]config.Server{"files": {}, "mail": {Mode: observe.Observe, Until: "2026-12-20"}}
	until := timestamppb.New(time.Date(2026, 12, 20, 0, 0, 0, 0, time.UTC))
	got := checkObserved(&f, []*policyv1.ObservedPolicy{
		{Until: until}, {Server: "files", Until: until}, {Server: "mail", Until: until}, {Server: "other", Until: until},
		{Rule: &policyv1.RuleRef{Document: "p"}, Until: until},
	})
	if len(got) != 1 || got[0].State != stateWarning || got[0].Result != "the running mesh still observes server files, until 2026-12-20, but the configuration does not" {
		t.Errorf("the results are %+v", got)
	}
}
