package approval_test

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/approval"
)

// Case I4. A caller requests an approval of another caller. The response is the same as for an approval that does not
// exist.
func TestService_HidesApprovalsFromOtherCallers(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		a := s.ask(t, params).GetApproval()
		s.approve(t, "ana", a.GetId())
		other := bot()
		other.Agent = "other"
		_, err := s.gateway().ClaimApproval(onBehalfOf(t, other), claimRequest(a, "c"))
		wantError(t, err, codes.NotFound, "APPROVAL_UNKNOWN")
		_, err = s.gateway().GetApproval(onBehalfOf(t, other), &approvalv1.GetApprovalRequest{ApprovalId: a.GetId()})
		wantError(t, err, codes.NotFound, "APPROVAL_UNKNOWN")
		_, err = s.gateway().CancelApproval(onBehalfOf(t, other), &approvalv1.CancelApprovalRequest{ApprovalId: a.GetId(), Reason: "x"})
		wantError(t, err, codes.NotFound, "APPROVAL_UNKNOWN")
		for _, client := range []approvalv1.ApprovalServiceClient{s.gateway(), s.person(t, "acme-operator")} {
			list, err := client.ListApprovals(onBehalfOf(t, other), &approvalv1.ListApprovalsRequest{})
			if err != nil || len(list.GetApprovals()) != 0 {
				t.Errorf("listed: %v, %v", list, err)
			}
		}
		_, err = s.person(t, "acme-operator").GetApproval(timeoutContext(t), &approvalv1.GetApprovalRequest{ApprovalId: a.GetId()})
		wantError(t, err, codes.NotFound, "APPROVAL_UNKNOWN")
		mine, err := s.gateway().GetApproval(onBehalfOf(t, bot()), &approvalv1.GetApprovalRequest{ApprovalId: a.GetId(), View: true})
		if err != nil || mine.GetView() != nil {
			t.Errorf("the agent's own approval: %v, %v", mine, err)
		}
	})
}

func TestListApprovals_PagesAndFilters(t *testing.T) {
	forEachStore(t, func(c *approval.Config) { c.MaxPending = 100 }, func(t *testing.T, s *fixture) {
		var want []string
		for i := range 7 {
			want = append([]string{s.ask(t, fmt.Sprintf(`{"n":%d}`, i)).GetApproval().GetId()}, want...)
		}
		s.approve(t, "ana", want[0])
		var got []string
		req := &approvalv1.ListApprovalsRequest{PageSize: 3}
		for {
			page, err := s.person(t, "viewer").ListApprovals(timeoutContext(t), req)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range page.GetApprovals() {
				got = append(got, a.GetId())
			}
			if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" {
				break
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("listed %v, want %v", got, want)
		}
		forMe := &approvalv1.ListApprovalsRequest{Filter: &approvalv1.ApprovalFilter{ForMe: true}}
		for token, n := range map[string]int{"ben": 6, "viewer": 0, "bot-approver": 0} {
			page, err := s.person(t, token).ListApprovals(timeoutContext(t), forMe)
			if err != nil || len(page.GetApprovals()) != n {
				t.Errorf("%s may decide on %d, %v; want %d", token, len(page.GetApprovals()), err, n)
			}
		}
		page, err := s.person(t, "viewer").ListApprovals(timeoutContext(t), &approvalv1.ListApprovalsRequest{Filter: &approvalv1.ApprovalFilter{States: []approvalv1.ApprovalState{approved}}})
		if err != nil || len(page.GetApprovals()) != 1 {
			t.Errorf("approved: %v, %v", page, err)
		}
		for _, token := range []string{"x", "MSB4", nextPageToken(t, s)} {
			_, err := s.person(t, "viewer").ListApprovals(timeoutContext(t), &approvalv1.ListApprovalsRequest{PageToken: token, Filter: &approvalv1.ApprovalFilter{Server: "pay"}})
			wantError(t, err, codes.InvalidArgument, "PAGE_TOKEN_INVALID")
		}
	})
}

func nextPageToken(t *testing.T, s *fixture) string {
	t.Helper()
	page, err := s.person(t, "viewer").ListApprovals(timeoutContext(t), &approvalv1.ListApprovalsRequest{PageSize: 1})
	if err != nil || page.GetNextPageToken() == "" {
		t.Fatal(page, err)
	}
	return page.GetNextPageToken()
}
