package wasmagent_test

import (
	"testing"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/wasmagent"
)

func TestCallersAreEnforcedAndNothingIsImplemented(t *testing.T) {
	t.Parallel()
	s := rpctest.Serve(t, authv1.Role_ROLE_WASMAGENT, wasmagent.New(), rpctest.Options{})
	s.CheckCallers(t, "sluice.wasmagent.v1")
}

func TestTheRoleServes(t *testing.T) {
	t.Parallel()
	s := rpctest.Serve(t, authv1.Role_ROLE_WASMAGENT, wasmagent.New(), rpctest.Options{})
	s.CheckHealth(t, "wasmagent")
}
