package pipeline

import (
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func TestLimits_AreRecordedInFull(t *testing.T) {
	t.Parallel()
	said := &policyv1.RuleLimit{
		Rule: &policyv1.RuleRef{Document: "doc", Rule: "rule"},
		Limit: &ratelimitv1.Limit{
			Bucket: "b", Kind: ratelimitv1.LimitKind_LIMIT_KIND_BUDGET, Max: "10", Window: durationpb.New(time.Minute), Cost: "2", Burst: 3,
		},
		Per: []string{"session"}, Cap: true, OnError: policyv1.OnLimiterError_ON_LIMITER_ERROR_ALLOW, Settle: "/total",
		SessionKey: policyv1.SessionKey_SESSION_KEY_RUN,
	}
	for _, m := range []protoreflect.Message{said.ProtoReflect(), said.GetLimit().ProtoReflect()} {
		fields := m.Descriptor().Fields()
		for i := range fields.Len() {
			if !m.Has(fields.Get(i)) {
				t.Errorf("the limit of this test has no %s", fields.Get(i).Name())
			}
		}
	}
	recorded := journal.FromLimit(said)
	recorded.Remaining = "7" // only the ratelimit role knows this value
	v := reflect.ValueOf(recorded)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("%s is not recorded", v.Type().Field(i).Name)
		}
	}
	if recorded.Kind != "budget" || recorded.OnError != "allow" || recorded.SessionKey != "run" {
		t.Errorf("%+v", recorded)
	}
}
