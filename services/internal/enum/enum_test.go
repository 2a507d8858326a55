package enum_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

func TestName(t *testing.T) {
	t.Parallel()
	for v, want := range map[protoreflect.Enum]string{
		commonv1.Code_CODE_UNSPECIFIED:                  "unspecified",
		commonv1.Code_CODE_DENIED_BY_RULE:               "denied_by_rule",
		approvalv1.ApprovalState_APPROVAL_STATE_PENDING: "pending",
		authv1.TokenRole_TOKEN_ROLE_AGENT:               "agent",
		commonv1.Code(12345):                            "12345",
		approvalv1.VoteChannel_VOTE_CHANNEL_UNSPECIFIED: "unspecified",
		approvalv1.Verdict_VERDICT_APPROVE:              "approve",
	} {
		if got := enum.Name(v); got != want {
			t.Errorf("%s is written %q, want %q", v.Descriptor().FullName(), got, want)
		}
		if want == "unspecified" {
			want = ""
		}
		if got := enum.NameOrEmpty(v); got != want {
			t.Errorf("%s is given as %q, want %q", v.Descriptor().FullName(), got, want)
		}
	}
}

func TestName_EveryEnumHasPrefix(t *testing.T) {
	t.Parallel()
	seen := 0
	protoregistry.GlobalTypes.RangeEnums(func(e protoreflect.EnumType) bool {
		if !strings.HasPrefix(string(e.Descriptor().FullName()), "sluice.") {
			return true
		}
		seen++
		values := e.Descriptor().Values()
		prefix, ok := strings.CutSuffix(string(values.ByNumber(0).Name()), "UNSPECIFIED")
		for i := range values.Len() {
			if name := string(values.Get(i).Name()); !ok || prefix == "" || !strings.HasPrefix(name, prefix) {
				t.Errorf("%s of %s has not the prefix %q", name, e.Descriptor().FullName(), prefix)
			}
		}
		return true
	})
	if seen < 5 {
		t.Errorf("%d enums were looked at", seen)
	}
}
