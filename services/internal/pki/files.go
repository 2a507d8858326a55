package pki

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// CAFile is the name of the file that contains the CA's certificate.
const CAFile = "ca.pem"

// caKeyFile is the name of the file that contains the CA's key. Services do not need this file.
const caKeyFile = "ca-key.pem"

// EnsureAuthority reads the CA in dir, or creates a CA if there is none. If only one of the CA's two files exists,
// EnsureAuthority returns an error, because a new CA would invalidate the certificates of all services.
func EnsureAuthority(dir string) (a *Authority, made bool, err error) {
	certFile, keyFile := filepath.Join(dir, CAFile), filepath.Join(dir, caKeyFile)
	certPEM, certErr := os.ReadFile(certFile)
	keyPEM, keyErr := os.ReadFile(keyFile)
	switch {
	case certErr == nil && keyErr == nil:
		a, err := parseAuthority(certPEM, keyPEM)
		if err != nil {
			return nil, false, fmt.Errorf("read the CA in %s: %w", dir, err)
		}
		return a, false, nil
	case errors.Is(certErr, fs.ErrNotExist) && errors.Is(keyErr, fs.ErrNotExist):
		a, err := NewAuthority()
		if err != nil {
			return nil, false, err
		}
		return a, true, a.write(dir)
	default:
		return nil, false, fmt.Errorf("%s has one of ca.pem and %s but not both: restore the other, or empty the folder and restart every role", dir, caKeyFile)
	}
}

func (a *Authority) write(dir string) error {
	raw, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return fmt.Errorf("encode the CA's key: %w", err)
	}
	if err := WriteFile(filepath.Join(dir, caKeyFile), encode("PRIVATE KEY", raw), 0o600); err != nil {
		return err
	}
	return WriteFile(filepath.Join(dir, CAFile), a.CertPEM(), 0o644)
}

func parseAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return nil, errors.New("the files contain no PEM blocks")
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok || !cert.IsCA || !key.Public().(ed25519.PublicKey).Equal(cert.PublicKey) {
		return nil, errors.New("the key does not belong to the certificate, or the certificate is not that of a CA")
	}
	return &Authority{cert: cert, key: key}, nil
}

// WriteRole issues a certificate for the service with the given role. It writes the certificate, the certificate's key
// and the CA's certificate to dir.
func (a *Authority) WriteRole(dir string, role authv1.Role) error {
	certPEM, keyPEM, err := a.Issue(RoleLeaf(role))
	if err != nil {
		return err
	}
	name := authn.RoleName(role)
	return errors.Join(
		WriteFile(filepath.Join(dir, name+"-key.pem"), keyPEM, 0o600),
		WriteFile(filepath.Join(dir, name+".pem"), certPEM, 0o644),
		WriteFile(filepath.Join(dir, CAFile), a.CertPEM(), 0o644),
	)
}

// WriteFile writes a file atomically. It first writes a temporary file and then renames this file. If the directory
// does not exist, WriteFile creates it with access only for its owner.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make the folder of %s: %w", path, err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(tmp.Name()))
	}
	return nil
}
