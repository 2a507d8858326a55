package pki_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/pki"
)

const (
	gateway = authv1.Role_ROLE_GATEWAY
	policy  = authv1.Role_ROLE_POLICY
)

func newAuthority(t *testing.T) *pki.Authority {
	t.Helper()
	a, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// issue issues a certificate and returns it in parsed form.
func issue(t *testing.T, a *pki.Authority, leaf pki.Leaf) *x509.Certificate {
	t.Helper()
	certPEM, _, err := a.Issue(leaf)
	if err != nil {
		t.Fatal(err)
	}
	block, rest := pem.Decode(certPEM)
	if block == nil || len(rest) > 0 {
		t.Fatalf("the certificate is no single PEM block: %q", certPEM)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestIssue_CertificateNamesRole(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	for number := range authv1.Role_name {
		role := authv1.Role(number)
		if role == authv1.Role_ROLE_UNSPECIFIED {
			continue
		}
		cert := issue(t, a, pki.RoleLeaf(role))
		if peer, err := authn.PeerOf(cert); err != nil || peer.Role != role {
			t.Errorf("%s: read as %s, %v", role, peer.Role, err)
		}
		for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			if _, err := cert.Verify(x509.VerifyOptions{Roots: a.Pool(), KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
				t.Errorf("%s: %v", role, err)
			}
		}
		for _, host := range []string{"localhost", "127.0.0.1", "::1", authn.RoleName(role)} {
			if err := cert.VerifyHostname(host); err != nil {
				t.Errorf("%s does not name %s: %v", role, host, err)
			}
		}
		if cert.IsCA || cert.KeyUsage&x509.KeyUsageCertSign != 0 {
			t.Errorf("%s can sign certificates", role)
		}
	}
}

func TestIssue_Life(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	for life, want := range map[time.Duration]time.Duration{0: pki.CertLife, time.Hour: time.Hour} {
		cert := issue(t, a, pki.Leaf{Name: "x", Life: life})
		if left := time.Until(cert.NotAfter); left > want || left < want-time.Minute {
			t.Errorf("with a life of %v the certificate is valid for %v more", life, left)
		}
		if !cert.NotBefore.Before(time.Now().Add(-time.Minute)) {
			t.Error("a clock that is a minute behind refuses it")
		}
	}
	cert := issue(t, a, pki.Leaf{Name: "x", Life: -1})
	if _, err := cert.Verify(x509.VerifyOptions{Roots: a.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
		t.Error("an expired certificate verifies")
	}
	if !cert.NotBefore.Before(cert.NotAfter) {
		t.Errorf("the expired certificate was never valid: %v to %v", cert.NotBefore, cert.NotAfter)
	}
}

func TestIssue_OtherAuthorityDoesNotVerify(t *testing.T) {
	t.Parallel()
	a, b := newAuthority(t), newAuthority(t)
	cert := issue(t, a, pki.RoleLeaf(gateway))
	if _, err := cert.Verify(x509.VerifyOptions{Roots: b.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
		t.Error("a certificate of another CA of the same name verifies")
	}
	if _, _, err := a.Issue(pki.Leaf{Name: "x", URIs: []string{"spiffe://sluice/%zz"}}); err == nil {
		t.Error("a broken URI was signed")
	}
}

func TestLoad_ReadsWrittenRole(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "certs")
	a := newAuthority(t)
	if err := a.WriteRole(dir, gateway); err != nil {
		t.Fatal(err)
	}
	id, pool, err := pki.Load(dir, gateway)
	if err != nil {
		t.Fatal(err)
	}
	if id.Peer.Role != gateway || !id.Peer.Key.Equal(id.Key.Public()) || !pool.Equal(a.Pool()) {
		t.Errorf("read %v", id.Peer)
	}
	for name, mode := range map[string]fs.FileMode{"gateway-key.pem": 0o600, "gateway.pem": 0o644, "ca.pem": 0o644} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v, want mode %v", name, info.Mode(), err, mode)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 3 {
		t.Errorf("the folder has %v, %v: the CA's key must not be there", entries, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder's mode is %v, %v", info.Mode(), err)
	}
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLoad_ReportsProblem(t *testing.T) {
	t.Parallel()
	other := newAuthority(t)
	otherCert, otherKey, err := other.Issue(pki.RoleLeaf(policy))
	if err != nil {
		t.Fatal(err)
	}
	bareCert, bareKey, err := other.Issue(pki.Leaf{Name: "gateway"})
	if err != nil {
		t.Fatal(err)
	}
	curveCert, curveKey := ecdsaCertificate(t)
	tests := []struct {
		name    string
		spoil   func(t *testing.T, dir string)
		message string
	}{
		{"no CA", func(t *testing.T, dir string) { remove(t, dir, "ca.pem") }, "read the CA: open"},
		{"no certificate", func(t *testing.T, dir string) { remove(t, dir, "gateway.pem") }, "read the certificate of gateway: open"},
		{"no key", func(t *testing.T, dir string) { remove(t, dir, "gateway-key.pem") }, "read the key of gateway: open"},
		{"a file without a CA", func(t *testing.T, dir string) { write(t, filepath.Join(dir, "ca.pem"), []byte("x")) }, "ca.pem contains no PEM certificate"},
		{"a file without a certificate", func(t *testing.T, dir string) { write(t, filepath.Join(dir, "gateway.pem"), []byte("x")) }, "gateway.pem and "},
		{"another's key", func(t *testing.T, dir string) { write(t, filepath.Join(dir, "gateway-key.pem"), otherKey) }, "private key does not match"},
		{"another role's", func(t *testing.T, dir string) { writePair(t, dir, otherCert, otherKey) }, "is the certificate of the role policy, want gateway"},
		{"no role's", func(t *testing.T, dir string) { writePair(t, dir, bareCert, bareKey) }, "names 0 roles"},
		{"another kind of key", func(t *testing.T, dir string) { writePair(t, dir, curveCert, curveKey) }, "not Ed25519; make it with `sluice certs`"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := newAuthority(t).WriteRole(dir, gateway); err != nil {
				t.Fatal(err)
			}
			tt.spoil(t, dir)
			id, pool, err := pki.Load(dir, gateway)
			if err == nil || !strings.Contains(err.Error(), tt.message) || id != nil || pool != nil {
				t.Fatalf("got %v, %v, %v; want %q", id, pool, err, tt.message)
			}
			if strings.HasPrefix(tt.name, "no ") && tt.name != "no role's" && !strings.Contains(err.Error(), "make it with `sluice certs --dir "+dir+"`") {
				t.Errorf("the way out is missing: %v", err)
			}
			if strings.Contains(err.Error(), "BEGIN") {
				t.Errorf("the message shows a file: %v", err)
			}
		})
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func writePair(t *testing.T, dir string, cert, key []byte) {
	t.Helper()
	write(t, filepath.Join(dir, "gateway.pem"), cert)
	write(t, filepath.Join(dir, "gateway-key.pem"), key)
}

func ecdsaCertificate(t *testing.T) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: issue(t, newAuthority(t), pki.Leaf{Name: "x"}).SerialNumber}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

func TestEnsureAuthority_ReusesExistingCA(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "ca")
	first, made, err := pki.EnsureAuthority(dir)
	if err != nil || !made {
		t.Fatalf("made is %t: %v", made, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "ca-key.pem")); err != nil || info.Mode() != 0o600 {
		t.Errorf("the CA's key: %v, %v", info.Mode(), err)
	}
	second, made, err := pki.EnsureAuthority(dir)
	if err != nil || made || !bytes.Equal(first.CertPEM(), second.CertPEM()) {
		t.Fatalf("made is %t, the same is %t: %v", made, bytes.Equal(first.CertPEM(), second.CertPEM()), err)
	}
	cert := issue(t, second, pki.RoleLeaf(gateway))
	if _, err := cert.Verify(x509.VerifyOptions{Roots: first.Pool()}); err != nil {
		t.Errorf("a certificate of the existing CA does not verify: %v", err)
	}
}

// One of the CA's two files is missing. EnsureAuthority returns an error and creates no CA, because a new CA would
// invalidate the certificates of all services.
func TestEnsureAuthority_RefusesIncompleteCA(t *testing.T) {
	t.Parallel()
	_, foreignKey, err := newAuthority(t).Issue(pki.RoleLeaf(gateway))
	if err != nil {
		t.Fatal(err)
	}
	leafCert, leafKey, err := newAuthority(t).Issue(pki.RoleLeaf(gateway))
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(dir string){
		"no key":         func(dir string) { remove(t, dir, "ca-key.pem") },
		"no certificate": func(dir string) { remove(t, dir, "ca.pem") },
		"an empty key":   func(dir string) { write(t, filepath.Join(dir, "ca-key.pem"), nil) },
		"a broken key": func(dir string) {
			write(t, filepath.Join(dir, "ca-key.pem"), []byte("-----BEGIN X-----\n-----END X-----\n"))
		},
		"another's key": func(dir string) { write(t, filepath.Join(dir, "ca-key.pem"), foreignKey) },
		"a role's, no CA's": func(dir string) {
			write(t, filepath.Join(dir, "ca.pem"), leafCert)
			write(t, filepath.Join(dir, "ca-key.pem"), leafKey)
		},
	} {
		dir := t.TempDir()
		if _, _, err := pki.EnsureAuthority(dir); err != nil {
			t.Fatal(err)
		}
		spoil(dir)
		if a, made, err := pki.EnsureAuthority(dir); err == nil || made || a != nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v, made is %t, %v", name, a, made, err)
		}
	}
}

func TestEphemeral_HasRole(t *testing.T) {
	t.Parallel()
	id, err := pki.Ephemeral(gateway)
	if err != nil {
		t.Fatal(err)
	}
	sum := ed25519.Sign(id.Key, []byte("x"))
	if id.Peer.Role != gateway || !ed25519.Verify(id.Peer.Key, []byte("x"), sum) || id.Cert.Certificate != nil {
		t.Errorf("got %v", id.Peer)
	}
}

func TestWriteFile_IsAtomic(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "file")
	for _, text := range []string{"first", "second"} {
		if err := pki.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("read %q, %v", got, err)
		}
	}
	occupied := filepath.Join(dir, "occupied")
	if err := os.MkdirAll(filepath.Join(occupied, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := pki.WriteFile(occupied, []byte("x"), 0o600); err == nil {
		t.Error("a folder was overwritten")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("the folder has %v, %v: nothing half written may stay", entries, err)
	}
}
