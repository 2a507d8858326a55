package wait

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strconv"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// LimitKey is the idempotency key under which the limits of an attempt to run an
// approved call are reserved, so that callers who race for it reserve once
// (sluice/approval/v1/binding.proto).
func LimitKey(a *approvalv1.Approval, limits []*policyv1.Limit) string {
	fields := []string{"sluice-limits-1", a.GetId(), strconv.Itoa(int(a.GetAttempt())), strconv.Itoa(len(limits))}
	for _, l := range limits {
		fields = append(fields, l.GetBucket(), strconv.Itoa(int(l.GetKind())), l.GetMax(),
			strconv.FormatInt(l.GetWindow().AsDuration().Nanoseconds(), 10), l.GetCost(), strconv.FormatInt(l.GetBurst(), 10))
	}
	h := sha256.New()
	for _, f := range fields {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(f)))
		_, _ = h.Write(size[:])   // a hash takes everything
		_, _ = h.Write([]byte(f)) // as above
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}
