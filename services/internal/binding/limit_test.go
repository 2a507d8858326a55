package binding_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/internal/binding"
)

func TestLimitKey_MatchesContract(t *testing.T) {
	t.Parallel()
	got := binding.LimitKey(&approvalv1.Approval{Id: "a-1", Attempt: 2}, []*ratelimitv1.Limit{
		{Bucket: "b1", Kind: ratelimitv1.LimitKind_LIMIT_KIND_BUDGET, Max: "500.00", Window: durationpb.New(24 * time.Hour), Cost: "12.50"},
		{Bucket: "b2", Kind: ratelimitv1.LimitKind_LIMIT_KIND_CONCURRENCY, Max: "4", Cost: "1"},
	})
	if got != "quWkAnBXYRTCVDUj5iNEvlwCyI9QxoFFO0isnalFFpc" {
		t.Errorf("the key is %s", got)
	}
}
