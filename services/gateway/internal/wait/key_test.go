package wait_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/wait"
)

// The key that the contract prints.
func TestLimitKeyIsWhatTheContractSays(t *testing.T) {
	t.Parallel()
	got := wait.LimitKey(&approvalv1.Approval{Id: "a-1", Attempt: 2}, []*policyv1.Limit{
		{Bucket: "b1", Kind: policyv1.LimitKind_LIMIT_KIND_BUDGET, Max: "500.00", Window: durationpb.New(24 * time.Hour), Cost: "12.50"},
		{Bucket: "b2", Kind: policyv1.LimitKind_LIMIT_KIND_CONCURRENCY, Max: "4", Cost: "1"},
	})
	if got != "quWkAnBXYRTCVDUj5iNEvlwCyI9QxoFFO0isnalFFpc" {
		t.Errorf("it is %s", got)
	}
}
