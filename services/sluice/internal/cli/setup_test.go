package cli_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
	"github.com/sluice-mesh/sluice/services/sluice/internal/cli"
)

func setup(t *testing.T, dir string) {
	t.Helper()
	if code := cli.Main("sluice", []string{"setup", "--dir", dir}, sandbox.Launcher{}); code != 0 {
		t.Fatalf("setup ended with %d", code)
	}
}

func read(t *testing.T, path ...string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestSetup_KeepsExistingFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	setup(t, dir)
	files := []string{
		"ca/ca.pem", "ca/ca-key.pem", "gateway/gateway-key.pem", "policy/policy.pem", "identity/tokens/agent.sha256",
		"wasmagent/ca.pem", "operator/ca.pem", "operator/tokens/agent", "operator/tokens/operator",
	}
	before := make(map[string][]byte)
	for _, file := range files {
		before[file] = read(t, dir, file)
	}
	setup(t, dir)
	for _, file := range files {
		if !bytes.Equal(before[file], read(t, dir, file)) {
			t.Errorf("%s was replaced", file)
		}
	}
}

// After several setups run concurrently in one directory, there is only one CA, which signed all certificates. There is
// also only one token of each kind.
func TestSetup_ConcurrentSetupsCreateOneCA(t *testing.T) {
	t.Parallel()
	for range 5 {
		dir := t.TempDir()
		var both sync.WaitGroup
		for range 4 {
			both.Go(func() {
				if code := cli.Main("sluice", []string{"setup", "--dir", dir}, sandbox.Launcher{}); code != 0 {
					t.Errorf("setup ended with %d", code)
				}
			})
		}
		both.Wait()
		authority := read(t, dir, "ca", "ca.pem")
		for _, role := range []authv1.Role{authv1.Role_ROLE_GATEWAY, authv1.Role_ROLE_POLICY, authv1.Role_ROLE_WASMAGENT} {
			own := filepath.Join(dir, authn.RoleName(role))
			id, pool, err := pki.Load(own, role)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := id.Cert.Leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil || !bytes.Equal(read(t, own, "ca.pem"), authority) {
				t.Errorf("%v: %v, or it trusts another CA", role, err)
			}
		}
		sum := sha256.Sum256(bytes.TrimSpace(read(t, dir, "operator", "tokens", "agent")))
		if got := string(read(t, dir, "identity", "tokens", "agent.sha256")); got != hex.EncodeToString(sum[:]) {
			t.Errorf("the identity role knows another token")
		}
	}
}

func TestSetup_GivesEachRoleOnlyItsOwnKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	setup(t, dir)
	entries, err := os.ReadDir(filepath.Join(dir, "gateway"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if len(names) != 3 || names[0] != "ca.pem" || names[1] != "gateway-key.pem" || names[2] != "gateway.pem" {
		t.Errorf("the gateway's folder holds %v", names)
	}
	for _, secret := range []string{"ca/ca-key.pem", "gateway/gateway-key.pem", "operator/tokens/operator"} {
		info, err := os.Stat(filepath.Join(dir, secret))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", secret, info.Mode(), err)
		}
	}
	hash := sha256.Sum256(read(t, dir, "operator/tokens/agent"))
	if got := string(read(t, dir, "identity/tokens/agent.sha256")); got != hex.EncodeToString(hash[:]) {
		t.Errorf("the hash of the agent's token is %s", got)
	}
}

func TestSetup_ReplacesAnExpiringCertificate(t *testing.T) {
	t.Parallel()
	const role = authv1.Role_ROLE_GATEWAY
	other, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		ca   *pki.Authority // nil means the CA of the directory
		life time.Duration
		kept bool
	}{
		"that ends in 31 days: no":    {nil, 31 * 24 * time.Hour, true},
		"that ends in 29 days: yes":   {nil, 29 * 24 * time.Hour, false},
		"that has ended: yes":         {nil, -1, false},
		"that another CA signed: yes": {other, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			setup(t, dir)
			ca := tt.ca
			if ca == nil {
				var err error
				if ca, _, err = pki.EnsureAuthority(filepath.Join(dir, "ca")); err != nil {
					t.Fatal(err)
				}
			}
			leaf := pki.RoleLeaf(role)
			leaf.Life = tt.life
			certPEM, keyPEM, err := ca.Issue(leaf)
			if err != nil {
				t.Fatal(err)
			}
			for file, data := range map[string][]byte{"gateway.pem": certPEM, "gateway-key.pem": keyPEM, "ca.pem": ca.CertPEM()} {
				if err := pki.WriteFile(filepath.Join(dir, "gateway", file), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			setup(t, dir)
			if kept := bytes.Equal(certPEM, read(t, dir, "gateway/gateway.pem")); kept != tt.kept {
				t.Errorf("the certificate was not replaced: %v, want %v", kept, tt.kept)
			}
			if _, _, err := pki.Load(filepath.Join(dir, "gateway"), role); err != nil {
				t.Errorf("the gateway can't load its certificate: %v", err)
			}
			if !bytes.Equal(read(t, dir, "ca/ca.pem"), read(t, dir, "gateway/ca.pem")) {
				t.Error("the gateway trusts a CA other than the deployment's")
			}
		})
	}
}
