package policy_test

import (
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

// The policy service has claimed the approval of a policy change, and is killed while it activates the change. When the
// lease of the claim has expired, the approval is claimed again, and the change becomes active once.
func TestApprovedChanges_ServiceIsKilledDuringActivation(t *testing.T) {
	t.Parallel()
	const policyRole, approvalRole = authv1.Role_ROLE_POLICY, authv1.Role_ROLE_APPROVAL
	database := sqlstoretest.Start(t).Database(t)
	a := stack.StartDistributed(t, stack.Options{
		Servers: `  raw: {http: {url: "http://127.0.0.1:1/mcp"}}`, StoredPolicies: true, Tokens: changePeople(),
		Extra: fmt.Sprintf("approvals: {policy_changes: {approvers: [security]}}\nstores: {policy: %q}", database),
	})
	author := policyv1.NewPolicyServiceClient(a.DialWithToken(t, policyRole, anaToken))
	apply := func() error {
		_, err := author.ApplyDocuments(t.Context(), &policyv1.ApplyDocumentsRequest{Documents: []*policyv1.Document{{Path: "team.yaml", Text: firstPolicy}}, Comment: "begin"})
		return err
	}
	err := apply()
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "POLICY_CHANGE_PENDING")
	id := rpc.Facts(err)["approval"]
	voter := approvalv1.NewApprovalServiceClient(a.DialWithToken(t, approvalRole, benToken))
	approval := func() *approvalv1.GetApprovalResponse {
		resp, err := voter.GetApproval(t.Context(), &approvalv1.GetApprovalRequest{ApprovalId: id, View: true})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	vote := &approvalv1.DecideApprovalRequest{ApprovalId: id, Verdict: approvalv1.Verdict_VERDICT_APPROVE, ViewDigest: approval().GetView().GetDigest()}
	if _, err := voter.DecideApproval(t.Context(), vote); err != nil {
		t.Fatal(err)
	}
	unlock := lockActivations(t, database)
	killed := make(chan error, 1)
	go func() { killed <- apply() }()
	eventually.Within(t, time.Minute, "the approval is claimed", func() bool {
		return approval().GetApproval().GetState() == approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED
	})
	a.Kill(t, policyRole)
	if err := <-killed; err == nil {
		t.Error("the change was applied, and the service was killed before it")
	}
	unlock()
	a.Start(t, policyRole)
	a.AwaitServing(t, policyRole)
	var reasons []string
	eventually.Within(t, 2*time.Minute, "the lease ends, and the change is active", func() bool {
		err := apply()
		if r := rpc.Reason(err); err != nil && !slices.Contains(reasons, r) {
			reasons = append(reasons, r)
		}
		return err == nil
	})
	if !slices.Contains(reasons, "POLICY_CHANGE_CLAIMED") {
		t.Errorf("before the lease ended, the reasons were %v", reasons)
	}
	list, err := author.ListRevisions(t.Context(), new(policyv1.ListRevisionsRequest))
	if err != nil || len(list.GetRevisions()) != 1 || list.GetRevisions()[0].GetApprovalId() != id {
		t.Errorf("%v: %v", list, err)
	}
}

// lockActivations locks the table of activations in a database. Every activation waits until the returned function is
// called. The table can still be read.
func lockActivations(t *testing.T, database string) (unlock func()) {
	t.Helper()
	db, err := sql.Open("pgx", database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), "LOCK TABLE policy_activations IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
	}
}
