package config_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

// SecretPaths returns all files in the configuration that only the mesh may read.
func TestSecretPaths_ContainAllSecretFiles(t *testing.T) {
	t.Parallel()
	path := write(t, `
data: state
tls: {dir: /etc/certs}
policies: [policies, /srv/more.yaml]
auth: {tokens: [{name: a, token: "${file:tokens/a}", role: agent}]}
stores: {approval: "postgres://x:${file:/run/secrets/db}@db/sluice"}
servers:
  http: {http: {url: "https://example.com", headers: {Authorization: "Bearer ${file:tokens/http}"}}}
  stdio: {stdio: {command: [x], env: {A: "${file:tokens/a}${env:B}", C: plain}}}
approvals: {notify: {webhooks: [{name: w, url: "https://example.com", secret: "${file:hook}"}]}}
`)
	f, err := config.Load(path, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(path)
	want := []string{"/etc/certs", "/run/secrets/db"}
	for _, name := range []string{"hook", filepath.Base(path), "tokens/a", "tokens/http"} {
		want = append(want, filepath.Join(dir, name))
	}
	less := func(a, b string) bool { return a < b }
	if diff := cmp.Diff(want, f.SecretPaths(), cmpopts.SortSlices(less)); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{filepath.Join(dir, "policies"), "/srv/more.yaml"}, f.PolicyPaths(), cmpopts.SortSlices(less)); diff != "" {
		t.Errorf("documents (-want +got):\n%s", diff)
	}
}

func TestPolicyFiles_AreEmptyIfPoliciesAreInTheStore(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"policies: [store]":   nil,
		"policies: [./store]": {"./store"},
		"policies: [p, q]":    {"p", "q"},
	} {
		f, err := config.Parse("sluice.yaml", []byte(text), noEnv)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if diff := cmp.Diff(want, f.PolicyFiles()); diff != "" || f.PoliciesInStore() != (want == nil) || len(f.PolicyPaths()) != len(want) {
			t.Errorf("%s: in the store: %t, %v (-want +got):\n%s", text, f.PoliciesInStore(), f.PolicyPaths(), diff)
		}
	}
}

func TestLoad_RefusesStoreBesideFiles(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"policies: [more, store]":      `policies[1]: "store" must be the only entry, because policies come either from files or from the store`,
		"stores: {policy_max_age: 1s}": "stores.policy_max_age: 1s is not between 5s and 1h0m0s",
	} {
		if _, err := config.Parse("sluice.yaml", []byte(text), noEnv); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
