package pipeline_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

func deniedBy(v *approvalv1.Vote) *approvalv1.Approval {
	a := proto.CloneOf(approvalIn(denied))
	v = proto.CloneOf(v)
	v.Verdict = approvalv1.Verdict_VERDICT_DENY
	a.Votes = []*approvalv1.Vote{{Subject: "eve", Verdict: approvalv1.Verdict_VERDICT_APPROVE, Comment: "fine"}, v}
	a.Reason = v.GetComment()
	return a
}

func refuseRequest(r *approvalv1.Refusal) func() (*approvalv1.RequestApprovalResponse, error) {
	return func() (*approvalv1.RequestApprovalResponse, error) {
		return &approvalv1.RequestApprovalResponse{Result: &approvalv1.RequestApprovalResponse_Refusal{Refusal: r}}, nil
	}
}

// The message of a denial says who denied the call, why, and for how long identical calls are denied. It also says that
// the call must not be repeated.
func TestDenial_MessageHasItsReason(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		vote *approvalv1.Vote
		left time.Duration
		want string
	}{
		"with a comment": {
			&approvalv1.Vote{Subject: "ben", Comment: "not today"}, 10 * time.Minute,
			"Not executed: denied by ben: not today. The same call stays denied for another 10 minutes: do not make it again.",
		},
		"without one": {
			&approvalv1.Vote{Subject: "ben"}, 119 * time.Second,
			"Not executed: denied by ben. The same call stays denied for another 119 s: do not make it again.",
		},
		"a comment that is a sentence": {
			&approvalv1.Vote{Subject: "ben", Comment: "Why?"}, 10*time.Minute - time.Millisecond,
			"Not executed: denied by ben: Why? The same call stays denied for another 10 minutes: do not make it again.",
		},
		"at the agent": {
			&approvalv1.Vote{Subject: "bot", Channel: approvalv1.VoteChannel_VOTE_CHANNEL_ELICITATION}, time.Millisecond,
			"Not executed: declined at the agent. The same call stays denied for another 1 s: do not make it again.",
		},
		"for an unknown time": {
			&approvalv1.Vote{Subject: "ben"}, 0, "Not executed: denied by ben. Do not make the same call again.",
		},
	} {
		for _, held := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, held %v", name, held), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					a := deniedBy(tt.vote)
					if tt.left > 0 {
						a.DeniedUntil = timestamppb.New(time.Now().Add(tt.left))
					}
					w := newApprovalPipeline()
					w.approvals.updates <- a
					w.approvals.answerRequest = refuseRequest(&approvalv1.Refusal{
						Code: commonv1.Code_CODE_APPROVAL_DENIED, Message: tt.vote.GetComment(), RetryAfter: durationpb.New(tt.left), Approval: a,
					})
					if held {
						w.approvals.answerRequest = answerStates(approvalIn(pending))
					}
					got := w.do(t)
					checkPermanent(t, got, tt.want)
					if until := got.Refusal.Approval.DeniedUntil; until.IsZero() != (tt.left == 0) || tt.left > 0 && !until.Equal(a.GetDeniedUntil().AsTime()) {
						t.Errorf("programs get %s", until)
					}
				})
			})
		}
	}
}

// checkPermanent checks that a call was refused with the message want, and that the refusal says that the call must not
// be retried.
func checkPermanent(t *testing.T, got pipeline.Result, want string) {
	t.Helper()
	if got.Refusal == nil || got.Refusal.Text() != want {
		t.Fatalf("it says %q, want %q", got.Refusal.Text(), want)
	}
	body, err := got.Refusal.Answer(refusal.Request{ID: []byte("1"), Method: "tools/call"})
	if err != nil || !strings.Contains(string(body), `"retryable":false`) || strings.Contains(string(body), "retryAfterMs") {
		t.Errorf("a program reads %s, %v", body, err)
	}
}

// If too many of a caller's calls are waiting for approvals, the refusal of a further call contains the limit, the
// configuration key of the limit, and what to do.
func TestApproval_TooManyPendingIsExplained(t *testing.T) {
	t.Parallel()
	w := newApprovalPipeline()
	w.approvals.answerRequest = refuseRequest(&approvalv1.Refusal{Code: commonv1.Code_CODE_TOO_MANY_PENDING})
	got := w.do(t)
	want := "Not executed: 5 calls of this caller, or of those it works for, wait for approval already, which is the limit (approvals.max_pending). " +
		"Wait for one of them with sluice_approval_wait, or until people have decided, and then make this call again."
	if got.Refusal.Text() != want || !got.Refusal.Retryable() {
		t.Errorf("it says %q", got.Refusal.Text())
	}
}
