//go:build compose

package compose_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	grpcurlVersion = "v1.9.4"
	policyService  = "sluice.policy.v1.PolicyService"
	decideRequest  = `{"call": {"server": "demo", "name": "delete_note"},
		"subject": {"tenant": "default", "subject": "agent", "agent": "demo", "role": "TOKEN_ROLE_AGENT"}}`
)

// grpcurl runs the program grpcurl, which is built once and kept in the user's cache.
type grpcurl struct {
	d      *deployment
	binary string
}

func newGrpcurl(t *testing.T, d *deployment) *grpcurl {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(cache, "sluice", "grpcurl-"+grpcurlVersion)
	binary := filepath.Join(bin, "grpcurl")
	if _, err := os.Stat(binary); err != nil {
		d.run(t, imageTime, "env", "GOBIN="+bin, "go", "install", "github.com/fullstorydev/grpcurl/cmd/grpcurl@"+grpcurlVersion)
	}
	return &grpcurl{d: d, binary: binary}
}

// ask runs grpcurl with a token and the operator's CA. If token is empty, it sends no token.
func (g *grpcurl) ask(t *testing.T, token string, args ...string) (string, error) {
	t.Helper()
	flags := []string{"-cacert", g.d.key("operator", "ca.pem")}
	if token != "" {
		flags = append(flags, "-H", "authorization: Bearer "+token)
	}
	return g.d.tryRun(t, commandTime, g.binary, append(flags, args...)...)
}

func grpcurlStories(t *testing.T, d *deployment) {
	g := newGrpcurl(t, d)
	policy := d.addr("POLICY_PORT")
	contracts := filepath.Join(t.TempDir(), "policy.protoset")

	t.Run("the contracts are offered to an operator", func(t *testing.T) {
		got, err := g.ask(t, d.operator, "-protoset-out", contracts, policy, "describe", policyService)
		if err != nil || !strings.Contains(got, "rpc DecideCall") {
			t.Errorf("got %q, %v", got, err)
		}
	})
	for method, want := range map[string][]string{
		"DecideCall":  {`"effect": "EFFECT_DENY"`, `"code": "CODE_DENIED_BY_RULE"`, `"message": "notes are kept; ask a person to remove one"`},
		"ExplainCall": {`"effect": "EFFECT_DENY"`, `"why": "`, `"matched": true`},
	} {
		t.Run(method+" responds to an operator", func(t *testing.T) {
			got, err := g.ask(t, d.operator, "-d", decideRequest, policy, policyService+"/"+method)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range want {
				if !strings.Contains(got, text) {
					t.Errorf("%s is not in %s", text, got)
				}
			}
		})
		for name, refused := range map[string]struct{ token, want string }{
			"a caller without a token": {"", "Code: Unauthenticated"},
			"an unknown token":         {strings.Repeat("no", 20), "Code: Unauthenticated"},
			"an agent":                 {d.agent, "Code: PermissionDenied"},
		} {
			t.Run(method+" refuses "+name, func(t *testing.T) {
				// With -protoset, grpcurl does not use reflection, so the method itself refuses the call.
				_, err := g.ask(t, refused.token, "-protoset", contracts, "-d", decideRequest, policy, policyService+"/"+method)
				if err == nil || !strings.Contains(err.Error(), refused.want) {
					t.Errorf("got %v, want %s", err, refused.want)
				}
			})
		}
	}
	t.Run("reflection refuses an agent", func(t *testing.T) {
		if got, err := g.ask(t, d.agent, policy, "list"); err == nil {
			t.Errorf("an agent received %s", got)
		}
	})
	t.Run("the command line uses the operator's token", func(t *testing.T) {
		if got := d.cli(t, "--output", "json", "status"); !strings.Contains(got, `"ready": true`) && !strings.Contains(got, `"ready":true`) {
			t.Errorf("status is %s", got)
		}
	})
}
