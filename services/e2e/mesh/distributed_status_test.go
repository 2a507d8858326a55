package mesh_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// meshStatus is the JSON output of `sluice status`.
type meshStatus struct {
	Ready    bool     `json:"ready"`
	NotReady []string `json:"notReady"`
	Degraded []string `json:"degraded"`
	Servers  []struct {
		Name string `json:"name"`
	} `json:"servers"`
	Roles []struct {
		Role, Status, Error string
	} `json:"roles"`
}

// runStatus runs `sluice status` with a token. It returns the parsed output, the command's result, and its duration.
func runStatus(t *testing.T, a *rawmesh.Distributed, token string) (meshStatus, stack.CommandResult, time.Duration) {
	t.Helper()
	stack.Program(t, "sluice") // builds the program before the time is measured
	begin := time.Now()
	ran := stack.Run(t, stack.Command{
		Args: []string{"status", "--config", a.Config, "-o", "json"}, Dir: a.Dir,
		Env: []string{"SLUICE_TOKEN=" + token, "SLUICE_TLS_DIR=" + filepath.Join(a.Dir, "certs", "gateway")},
	})
	took := time.Since(begin)
	var said meshStatus
	if err := json.Unmarshal([]byte(ran.Stdout), &said); err != nil && ran.Stdout != "" {
		t.Fatalf("%v: %s", err, ran.Stdout)
	}
	return said, ran, took
}

// statusTimeLimit is the maximum duration of `sluice status`: its timeout of 2 s, and 8 s more for a busy machine.
const statusTimeLimit = 2*time.Second + 8*time.Second

// The gateway stays ready when the rate limit service, the approval service or the service that runs agents is
// unavailable. /readyz and `sluice status` report the unavailable service.
func TestReadiness_StaysWithoutLimiterApprovalOrAgents(t *testing.T) {
	t.Parallel()
	a := rawmesh.StartDistributed(t, stack.OpenPolicy, "")
	for _, role := range []authv1.Role{ratelimitRole, approvalRole, wasmagentRole} {
		name := authn.RoleName(role)
		a.Kill(t, role)
		awaitDegraded(t, a, "the "+name+" service is unavailable")
		said, ran, _ := runStatus(t, a, stack.OperatorToken)
		if ran.Code != 0 || !said.Ready || !slices.Equal(said.Degraded, []string{"the " + name + " service is unavailable"}) {
			t.Errorf("%s is unavailable: exit %d, %+v\n%s", name, ran.Code, said, ran.Stderr)
		}
		a.Start(t, role)
		a.AwaitReady(t)
	}
	if _, text := a.Ready(t); text != "ready\n" {
		t.Errorf("after all roles have restarted: %q", text)
	}
}

// awaitDegraded waits until /readyz reports that the mesh is ready but degraded, for the reason in the parameter why.
func awaitDegraded(t *testing.T, a *rawmesh.Distributed, why string) {
	t.Helper()
	eventually.Holds(t, "/readyz says "+why, func() bool {
		status, text := a.Ready(t)
		return status == http.StatusOK && text == "ready\ndegraded\n"+why+"\n"
	})
}

// If an operator runs `sluice status` while a mesh service hangs, the command reports that service within
// statusTimeLimit. Agents and callers with an unknown token do not receive this information.
func TestStatus_NamesARoleThatHangs(t *testing.T) {
	t.Parallel()
	a := rawmesh.StartDistributed(t, stack.OpenPolicy, "")
	for _, role := range authn.Roles() {
		name := authn.RoleName(role)
		a.Signal(t, role, stack.SIGSTOP)
		awaitUnavailable(t, a, role)
		said, ran, took := runStatus(t, a, stack.OperatorToken)
		if took > statusTimeLimit {
			t.Errorf("%s hangs: it took %v", name, took)
		}
		if err := said.checkUnavailable(name); err != nil {
			t.Errorf("%s hangs: exit %d: %v\n%s%s", name, ran.Code, err, ran.Stdout, ran.Stderr)
		}
		if role == identityRole { // tokens can't be checked while the identity role hangs
			for who, token := range map[string]string{"an agent": stack.AgentToken, "nobody": "a-token-that-nobody-knows-0123456789"} {
				if said, ran, _ := runStatus(t, a, token); ran.Code == 0 || len(said.Servers) > 0 || said.Ready {
					t.Errorf("%s receives %+v", who, said)
				}
			}
			if _, err := gatewayv1.NewGatewayServiceClient(a.DialWithToken(t, gatewayRole, stack.OperatorToken)).ListSessions(stack.TimeoutContext(t), nil); status.Code(err) != codes.Unauthenticated {
				t.Errorf("the sessions are listed while tokens can't be checked: %v", err)
			}
		}
		a.Signal(t, role, stack.SIGCONT)
		a.AwaitReady(t)
	}
}

// awaitUnavailable waits until the gateway reports that a mesh service does not respond. If that service is the gateway
// itself, awaitUnavailable returns at once.
func awaitUnavailable(t *testing.T, a *rawmesh.Distributed, role authv1.Role) {
	t.Helper()
	if role == gatewayRole {
		return
	}
	eventually.Holds(t, "/readyz names the role", func() bool {
		_, text := a.Ready(t)
		return strings.Contains(text, "the "+authn.RoleName(role)+" service is unavailable")
	})
}

// checkUnavailable returns an error unless the status reports that the service with the given name, and no other
// service, is unavailable.
func (s meshStatus) checkUnavailable(name string) error {
	for _, r := range s.Roles {
		if (r.Status == "SERVING") == (r.Role == name) {
			return fmt.Errorf("the role %s is %s", r.Role, r.Status)
		}
	}
	why := strings.Join(append(slices.Clone(s.NotReady), s.Degraded...), "; ")
	switch {
	case len(s.Roles) != 6:
		return fmt.Errorf("%d roles", len(s.Roles))
	case name == "gateway":
		return nil
	case s.Ready != (name != "policy" && name != "identity"), len(s.Servers) != 1, !strings.HasSuffix(why, "the "+name+" service is unavailable"):
		return fmt.Errorf("ready is %v: %s", s.Ready, why)
	}
	return nil
}
