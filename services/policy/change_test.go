package policy_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

const (
	statePending  = approvalv1.ApprovalState_APPROVAL_STATE_PENDING
	stateApproved = approvalv1.ApprovalState_APPROVAL_STATE_APPROVED
	stateClaimed  = approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED
)

// fakeApprovals is a fake approval service that the test controls. It has one approval for each call.
type fakeApprovals struct {
	approvalv1.ApprovalServiceClient

	mu        sync.Mutex
	approvals map[string]*approvalv1.Approval // by bound call
	calls     map[string]*approvalv1.BoundCall
	ended     map[string]string // how approvals ended
	// away is the error that RequestApproval returns. The function change modifies each claim. The function claimed is
	// called before the fake service responds to a claim that succeeded.
	away    error
	change  func(*approvalv1.Claimed)
	claimed func()
}

func newFakeApprovals() *fakeApprovals {
	return &fakeApprovals{approvals: make(map[string]*approvalv1.Approval), calls: make(map[string]*approvalv1.BoundCall), ended: make(map[string]string)}
}

func (f *fakeApprovals) RequestApproval(ctx context.Context, req *approvalv1.RequestApprovalRequest, _ ...grpc.CallOption) (*approvalv1.RequestApprovalResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away != nil {
		return nil, f.away
	}
	p := authn.PrincipalOf(ctx)
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(req.GetBound())
	key := p.GetTenant() + "/" + p.GetSubject() + "/" + string(raw)
	if f.approvals[key] == nil {
		f.approvals[key] = &approvalv1.Approval{Id: fmt.Sprintf("a-%d", len(f.approvals)+1), Requester: p, State: statePending, Attempt: 1, VotesMissing: 1}
		f.calls[f.approvals[key].GetId()] = req.GetBound()
	}
	return &approvalv1.RequestApprovalResponse{Result: &approvalv1.RequestApprovalResponse_Asked{Asked: &approvalv1.Asked{Approval: proto.CloneOf(f.approvals[key])}}}, err
}

func (f *fakeApprovals) byID(id string) *approvalv1.Approval {
	for _, a := range f.approvals {
		if a.GetId() == id {
			return a
		}
	}
	return nil
}

func (f *fakeApprovals) ClaimApproval(_ context.Context, req *approvalv1.ClaimApprovalRequest, _ ...grpc.CallOption) (*approvalv1.ClaimApprovalResponse, error) {
	resp := f.claim(req.GetApprovalId())
	if f.claimed != nil && resp.GetClaimed() != nil {
		f.claimed()
	}
	return resp, nil
}

func (f *fakeApprovals) claim(id string) *approvalv1.ClaimApprovalResponse {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.byID(id)
	if a.GetState() != stateApproved {
		return &approvalv1.ClaimApprovalResponse{Result: &approvalv1.ClaimApprovalResponse_Refusal{Refusal: &approvalv1.Refusal{Code: commonv1.Code_CODE_APPROVAL_USED, Approval: a}}}
	}
	a.State = stateClaimed
	out := &approvalv1.Claimed{Bound: proto.CloneOf(f.calls[a.GetId()]), Approval: proto.CloneOf(a), Votes: []*approvalv1.Vote{{Subject: "ben", Verdict: approvalv1.Verdict_VERDICT_APPROVE}}}
	if f.change != nil {
		f.change(out)
	}
	return &approvalv1.ClaimApprovalResponse{Result: &approvalv1.ClaimApprovalResponse_Claimed{Claimed: out}}
}

func (f *fakeApprovals) CompleteClaim(_ context.Context, req *approvalv1.CompleteClaimRequest, _ ...grpc.CallOption) (*approvalv1.CompleteClaimResponse, error) {
	f.end(req.GetApprovalId(), req.GetOutcome().String())
	return new(approvalv1.CompleteClaimResponse), nil
}

func (f *fakeApprovals) CancelApproval(_ context.Context, req *approvalv1.CancelApprovalRequest, _ ...grpc.CallOption) (*approvalv1.CancelApprovalResponse, error) {
	f.mu.Lock()
	claimed := f.byID(req.GetApprovalId()).GetState() == stateClaimed
	f.mu.Unlock()
	if claimed {
		return nil, &rpc.Error{Code: codes.FailedPrecondition, Reason: "APPROVAL_RUNNING"}
	}
	f.end(req.GetApprovalId(), "cancelled")
	return new(approvalv1.CancelApprovalResponse), nil
}

func (f *fakeApprovals) end(id, how string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended[id] == "" {
		f.ended[id] = how
	}
}

// approve marks the approval with the given id as approved.
func (f *fakeApprovals) approve(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byID(id).State = stateApproved
}

func (f *fakeApprovals) outcome(id string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended[id]
}

// changeFixture is a policy service in which every change needs the approval of one person other than the author. No
// documents are active.
type changeFixture struct {
	*stopFixture

	approvals *fakeApprovals
}

// eachChangeStore runs a test with a service that uses SQLite, and again with a service that uses PostgreSQL.
func eachChangeStore(t *testing.T, story func(t *testing.T, f *changeFixture)) {
	t.Helper()
	t.Parallel()
	for _, name := range []string{"SQLite", "PostgreSQL"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := stored(options{changes: &policyv1.ApprovalTerms{Quorum: 1, DecideWithin: durationpb.New(1 << 40), ExecuteWithin: durationpb.New(1 << 40)}})
			if name == "PostgreSQL" {
				opts.source = sqlstoretest.Postgres(t)
			}
			fake := newFakeApprovals()
			opts.approvals = fake
			story(t, &changeFixture{newStopFixture(t, opts), fake})
		})
	}
}

func (f *changeFixture) try(text, reason string) (*policyv1.ApplyDocumentsResponse, error) {
	return f.operator.ApplyDocuments(f.t.Context(), &policyv1.ApplyDocumentsRequest{Documents: singleDocument(text), Comment: reason})
}

// request requests a change and returns the id of the change's approval. The change must be pending.
func (f *changeFixture) request(text, reason string) string {
	f.t.Helper()
	_, err := f.try(text, reason)
	rpctest.WantStatus(f.t, err, codes.FailedPrecondition, "POLICY_CHANGE_PENDING")
	id := rpc.Facts(err)["approval"]
	if id == "" || rpc.Facts(err)["missing"] != "1" || len(rpc.Facts(err)["documents"]) != 64 || rpc.Facts(err)["until"] == "" {
		f.t.Fatalf("%v", rpc.Facts(err))
	}
	return id
}

func (f *changeFixture) wantRevisions(want int) []*policyv1.Revision {
	f.t.Helper()
	all := f.revisions(0, "").GetRevisions()
	if len(all) != want {
		f.t.Errorf("%d revisions were active, want %d: %v", len(all), want, all)
	}
	return all
}

func TestApplyDocuments_NeedsTheApproval(t *testing.T) {
	eachChangeStore(t, func(t *testing.T, f *changeFixture) {
		id := f.request(allowDocument, "begin")
		if f.request(allowDocument, "begin") != id || f.request(allowDocument, "another reason") == id || f.request(denyDocument, "begin") == id {
			t.Error("approvals do not belong to one change")
		}
		f.wantRevisions(0)
		f.wantEffect(deny)
		f.approvals.approve(id)
		f.wantEffect(deny)
		f.apply(allowDocument, "begin")
		f.wantEffect(allow)
		if all := f.wantRevisions(1); all[0].GetApprovalId() != id || strings.Join(all[0].GetApprovedBy(), " ") != "ben" || all[0].GetAuthor() != "operator" {
			t.Errorf("%v", all)
		}
		if got := f.approvals.outcome(id); got != "CALL_OUTCOME_DONE" {
			t.Errorf("the approval ended with %q", got)
		}
		for _, other := range []string{"a-2", "a-3"} {
			if got := f.approvals.outcome(other); got != "cancelled" {
				t.Errorf("the approval %s of a change of an older policy ended with %q", other, got)
			}
		}
		if resp := f.apply(allowDocument, "whatever"); !resp.GetUnchanged() {
			t.Errorf("the active documents: %v", resp)
		}
		text := f.approvals.calls[id].GetCall().GetParamsJson()
		for _, want := range []string{`"author":"operator"`, `"reason":"begin"`, `"replaces":"no documents"`, "deny -> allow"} {
			if !strings.Contains(text, want) {
				t.Errorf("approvers are not shown %s: %s", want, text)
			}
		}
	})
}

// An approval is claimed. Before its documents become active, another revision becomes active, for example through
// another replica. The claimed approval activates nothing.
func TestApplyDocuments_AnApprovalIsForOneActiveRevision(t *testing.T) {
	eachChangeStore(t, func(t *testing.T, f *changeFixture) {
		first, second := f.request(denyDocument, "first"), f.request(allowDocument, "second")
		f.approvals.approve(first)
		f.approvals.approve(second)
		f.apply(denyDocument, "first")
		if again := f.request(allowDocument, "second"); again == second {
			t.Error("the approval of a change of no documents is used for a change of the first ones")
		}
		f.wantEffect(deny)
		third := f.request(allowDocument, "third")
		f.approvals.approve(third)
		other := f.request(allowDocument+"# other\n", "other")
		f.approvals.approve(other)
		f.approvals.claimed = func() {
			f.approvals.claimed = nil
			f.apply(allowDocument+"# other\n", "other")
		}
		_, err := f.try(allowDocument, "third")
		rpctest.WantStatus(t, err, codes.Aborted, "REVISION_CHANGED")
		if all := f.wantRevisions(2); all[0].GetApprovalId() != other || f.approvals.outcome(third) != "CALL_OUTCOME_NEVER_SENT" {
			t.Errorf("the approval %s ended with %q, and %v is active", third, f.approvals.outcome(third), all[0])
		}
	})
}

// The approval service returns a claim that is for another change, or that was not approved by a person other than the
// author. The claim activates nothing.
func TestApplyDocuments_ChecksTheClaim(t *testing.T) {
	eachChangeStore(t, func(t *testing.T, f *changeFixture) {
		for what, change := range map[string]func(*approvalv1.Claimed){
			"another call":       func(c *approvalv1.Claimed) { c.Bound.Call.ParamsJson = "{}" },
			"another revision":   func(c *approvalv1.Claimed) { c.Bound.ServerIdentity += "0" },
			"no votes":           func(c *approvalv1.Claimed) { c.Votes = nil },
			"the author's vote":  func(c *approvalv1.Claimed) { c.Votes[0].Subject = "operator" },
			"a vote to deny":     func(c *approvalv1.Claimed) { c.Votes[0].Verdict = approvalv1.Verdict_VERDICT_DENY },
			"the call is absent": func(c *approvalv1.Claimed) { c.Bound = nil },
		} {
			id := f.request(allowDocument, what)
			f.approvals.approve(id)
			f.approvals.change = change
			_, err := f.try(allowDocument, what)
			rpctest.WantStatus(t, err, codes.Internal, "APPROVAL_MISMATCH")
			if got := f.approvals.outcome(id); got != "CALL_OUTCOME_NEVER_SENT" {
				t.Errorf("%s: the approval ended with %q", what, got)
			}
			f.approvals.change = nil
		}
		f.wantRevisions(0)
		f.wantEffect(deny)
	})
}

// Several concurrent requests use the same approval. Exactly one of them activates the documents.
func TestApplyDocuments_AnApprovalIsUsedOnce(t *testing.T) {
	eachChangeStore(t, func(t *testing.T, f *changeFixture) {
		id := f.request(allowDocument, "begin")
		f.approvals.approve(id)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				_, err := f.try(allowDocument, "begin")
				if r := rpc.Reason(err); err != nil && r != "POLICY_CHANGE_CLAIMED" && r != "REVISION_CHANGED" {
					t.Errorf("%v", err)
				}
			})
		}
		all.Wait()
		f.wantEffect(allow)
		f.wantRevisions(1)
	})
}

func TestApplyDocuments_IsRefusedWithoutTheApprovalService(t *testing.T) {
	eachChangeStore(t, func(t *testing.T, f *changeFixture) {
		for _, code := range []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.PermissionDenied, codes.Internal} {
			f.approvals.away = status.Error(code, "away")
			_, err := f.try(allowDocument, "begin")
			rpctest.WantStatus(t, err, codes.Unavailable, "APPROVAL_AWAY")
		}
		f.wantRevisions(0)
		f.wantEffect(deny)
		f.approvals.away = nil
		f.request(allowDocument, "begin")
	})
}
