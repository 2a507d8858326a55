package approval_test

import (
	"testing"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/approval"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

func TestCallersAreEnforcedAndNothingIsImplemented(t *testing.T) {
	t.Parallel()
	s := rpctest.Serve(t, authv1.Role_ROLE_APPROVAL, approval.New(), rpctest.Options{})
	s.CheckCallers(t, "sluice.approval.v1")
}

func TestTheRoleServes(t *testing.T) {
	t.Parallel()
	s := rpctest.Serve(t, authv1.Role_ROLE_APPROVAL, approval.New(), rpctest.Options{})
	s.CheckHealth(t, "approval")
}
