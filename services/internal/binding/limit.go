package binding

import (
	"encoding/base64"
	"strconv"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
)

// LimitKey returns the idempotency key with which the limits for one attempt to run an approved call are reserved.
// Concurrent callers use the same key, so the limits are reserved only once. See sluice/approval/v1/binding.proto.
func LimitKey(a *approvalv1.Approval, limits []*ratelimitv1.Limit) string {
	fields := []string{"sluice-limits-1", a.GetId(), strconv.Itoa(int(a.GetAttempt())), strconv.Itoa(len(limits))}
	for _, l := range limits {
		fields = append(fields, l.GetBucket(), strconv.Itoa(int(l.GetKind())), l.GetMax(),
			strconv.FormatInt(l.GetWindow().AsDuration().Nanoseconds(), 10), l.GetCost(), strconv.FormatInt(l.GetBurst(), 10))
	}
	sum := canonicaljson.Sum(fields...)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
