// Package pki creates and reads the certificates that identify the services of the mesh. It can create a development
// CA. Each service has an Ed25519 certificate with a URI SAN that contains its role, such as policy.
package pki

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

const (
	// caLife is the validity period of a development CA.
	caLife = 10 * 365 * 24 * time.Hour
	// CertLife is the validity period of a service's certificate if [Leaf.Life] is zero.
	CertLife = 365 * 24 * time.Hour
	// backdate is how long before its creation a certificate becomes valid, so that machines whose clocks are slow
	// accept it.
	backdate = 5 * time.Minute
)

// Authority is a CA, which signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

// Identity is a service's certificate and key.
type Identity struct {
	Cert tls.Certificate
	// Key signs principals.
	Key ed25519.PrivateKey
	// Peer is the identity that other services see.
	Peer authn.Peer
}

// NewAuthority creates a CA.
func NewAuthority() (*Authority, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the CA's key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "Sluice development CA"},
		NotBefore:             time.Now().Add(-backdate),
		NotAfter:              time.Now().Add(caLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, pub, key)
	if err != nil {
		return nil, fmt.Errorf("make the CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the CA: %w", err)
	}
	return &Authority{cert: cert, key: key}, nil
}

// Pool returns a pool that contains only the CA.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// CertPEM returns the CA's certificate.
func (a *Authority) CertPEM() []byte { return encode("CERTIFICATE", a.cert.Raw) }

// Leaf describes a certificate to issue. The zero value has no names.
type Leaf struct {
	// Name is the common name of the certificate. It is also a DNS name of the certificate, in addition to localhost.
	Name string
	// URIs are the certificate's URI SANs.
	URIs []string
	// Life is the validity period of the certificate. Zero means [CertLife]. A negative value creates an expired
	// certificate.
	Life time.Duration
}

// RoleLeaf describes the certificate of the service with the given role. Its DNS names are localhost and the role's
// name, which is the host name of the service in a deployment.
func RoleLeaf(role authv1.Role) Leaf {
	return Leaf{Name: authn.RoleName(role), URIs: []string{authn.RoleURI(role)}}
}

// Issue creates a certificate and its key, both in PEM.
func (a *Authority) Issue(leaf Leaf) (certPEM, keyPEM []byte, err error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the key of %s: %w", leaf.Name, err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: leaf.Name},
		NotBefore:    time.Now().Add(-backdate),
		NotAfter:     time.Now().Add(leaf.life()),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:     []string{leaf.Name, "localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	for _, text := range leaf.URIs {
		uri, err := url.Parse(text)
		if err != nil {
			return nil, nil, fmt.Errorf("read the URI SAN of %s: %w", leaf.Name, err)
		}
		template.URIs = append(template.URIs, uri)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, pub, a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("make the certificate of %s: %w", leaf.Name, err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the key of %s: %w", leaf.Name, err)
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", raw), nil
}

func (l Leaf) life() time.Duration {
	switch {
	case l.Life == 0:
		return CertLife
	case l.Life < 0:
		return -backdate / 2
	default:
		return l.Life
	}
}

// NewIdentity parses a service's certificate and key.
func NewIdentity(certPEM, keyPEM []byte) (*Identity, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("the key is not Ed25519; make it with `sluice certs`")
	}
	peer, err := authn.PeerOf(pair.Leaf)
	if err != nil {
		return nil, err
	}
	return &Identity{Cert: pair, Key: key, Peer: peer}, nil
}

// Ephemeral creates the identity of a service that runs in the same process as the services that it talks to. The
// identity's key never leaves the process, and the identity has no certificate.
func Ephemeral(role authv1.Role) (*Identity, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of %s: %w", authn.RoleName(role), err)
	}
	return &Identity{Key: key, Peer: authn.Peer{Role: role, Key: pub}}, nil
}

// Load reads the CA and the identity of the service with the given role, from DIR/ca.pem, DIR/<role>.pem and
// DIR/<role>-key.pem.
func Load(dir string, role authv1.Role) (*Identity, *x509.CertPool, error) {
	pool, err := LoadCA(dir)
	if err != nil {
		return nil, nil, err
	}
	name := authn.RoleName(role)
	certFile, keyFile := filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		return nil, nil, fmt.Errorf("read the certificate of %s: %w (make it with `sluice certs --dir %s`)", name, err, dir)
	}
	keyPEM, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("read the key of %s: %w (make it with `sluice certs --dir %s`)", name, err, dir)
	}
	id, err := NewIdentity(certPEM, keyPEM)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s and %s: %w", certFile, keyFile, err)
	}
	if id.Peer.Role != role {
		return nil, nil, fmt.Errorf("%s is the certificate of the role %s, want %s", certFile, authn.RoleName(id.Peer.Role), name)
	}
	return id, pool, nil
}

// LoadCA reads the CA from DIR/ca.pem.
func LoadCA(dir string) (*x509.CertPool, error) {
	file := filepath.Join(dir, "ca.pem")
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the CA: %w (make it with `sluice certs --dir %s`)", err, dir)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("%s contains no PEM certificate", file)
	}
	return pool, nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func serial() *big.Int {
	raw := make([]byte, 16)
	rand.Read(raw) // never fails: it ends the program instead
	return new(big.Int).SetBytes(raw)
}
