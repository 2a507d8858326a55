package cli

import (
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/spf13/cobra"

	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/pki"
)

// renewBefore is the minimum remaining validity of a certificate. setup replaces certificates that expire earlier.
const renewBefore = 30 * 24 * time.Hour

func (t *tool) certs() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "certs",
		Short: "Create a development CA and a certificate for each service",
		Long: `Create a development CA, and a certificate for each service (ROLE) that is valid for a year. If
the CA exists, the command uses it to replace the certificates. A service needs ca.pem, ROLE.pem
and ROLE-key.pem. No service needs ca-key.pem.`,
		Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			authority, made, err := pki.EnsureAuthority(dir)
			if err != nil {
				return err
			}
			for _, role := range roles {
				if err := authority.WriteRole(dir, role); err != nil {
					return err
				}
			}
			what := "used the existing CA"
			if made {
				what = "created a CA"
			}
			_, err = fmt.Fprintf(t.out, "%s and created certificates for %d roles in %s\n", what, len(roles), dir)
			return err
		},
	}
	c.Flags().StringVar(&dir, "dir", "certs", "the folder to write to")
	return c
}

// setup returns the command that creates the keys and tokens for mesh services in separate processes. Each service has
// its own directory, which only this service mounts.
func (t *tool) setup() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "setup",
		Short: "Create the keys and tokens of a deployment, with a folder for each service",
		Long: `Create in --dir:

  ca/            the CA and its key, which no service needs
  ROLE/          ca.pem, ROLE.pem and ROLE-key.pem, only for that service
  identity/      also tokens/ with the hashes of the tokens
  operator/      for people: ca.pem, and tokens/operator and tokens/agent with their hashes

The command replaces only certificates that another CA signed or that expire within 30 days, so
it may run at every start.`,
		Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			if err := setupAll(dir); err != nil {
				return err
			}
			_, err := fmt.Fprintf(t.out, "the keys and tokens are in %s\n", dir)
			return err
		},
	}
	c.Flags().StringVar(&dir, "dir", "setup", "the folder to write to")
	return c
}

// setupAll creates the missing files. It holds a lock, so that only one process at a time creates files. Otherwise two
// processes could each create a CA, and the certificates of one CA would not be trusted.
func setupAll(dir string) (err error) {
	keys := filepath.Join(dir, "ca") // no service mounts this directory
	if err := os.MkdirAll(keys, 0o700); err != nil {
		return fmt.Errorf("create the folder of the CA: %w", err)
	}
	lock := flock.New(filepath.Join(keys, "lock"), flock.SetPermissions(0o600))
	if err := lock.Lock(); err != nil {
		return fmt.Errorf("wait for another setup of %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := setupCerts(dir); err != nil {
		return err
	}
	return setupTokens(dir)
}

func setupCerts(dir string) error {
	authority, _, err := pki.EnsureAuthority(filepath.Join(dir, "ca"))
	if err != nil {
		return err
	}
	for _, role := range roles {
		own := filepath.Join(dir, authn.RoleName(role))
		if id, _, err := pki.Load(own, role); err == nil && isCertificateValid(id, authority) {
			continue
		}
		if err := authority.WriteRole(own, role); err != nil {
			return err
		}
	}
	return pki.WriteFile(filepath.Join(dir, "operator", "ca.pem"), authority.CertPEM(), 0o644)
}

// isCertificateValid reports whether a service's certificate was signed by the authority and is still valid for at
// least renewBefore.
func isCertificateValid(id *pki.Identity, authority *pki.Authority) bool {
	_, err := id.Cert.Leaf.Verify(x509.VerifyOptions{
		Roots: authority.Pool(), CurrentTime: time.Now().Add(renewBefore), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	return err == nil
}

func setupTokens(dir string) error {
	for _, name := range []string{agentToken, operatorToken} {
		text, err := ensureToken(filepath.Join(dir, "operator", "tokens", name))
		if err != nil {
			return err
		}
		hash := authn.HashSecret(text)
		for _, reader := range []string{"identity", "operator"} { // the identity role and the operator's `config check` read the hashes
			file := filepath.Join(dir, reader, "tokens", name+".sha256")
			if err := pki.WriteFile(file, []byte(hex.EncodeToString(hash[:])), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *tool) token() *cobra.Command {
	show := &cobra.Command{
		Use: "show agent|operator", Short: "Print a generated token", Args: args(cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs)),
		ValidArgs: []string{agentToken, operatorToken},
		RunE: func(_ *cobra.Command, given []string) error {
			f, err := t.load()
			if err != nil {
				return err
			}
			raw, err := os.ReadFile(tokenFile(f, given[0]))
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s does not exist: %s or %s generates tokens", tokenFile(f, given[0]), t.command("up"), t.command("setup"))
			}
			if err != nil {
				return fmt.Errorf("read the token: %w", err)
			}
			_, err = fmt.Fprintln(t.out, strings.TrimSpace(string(raw)))
			return err
		},
	}
	return group("token", "Create, list, replace and revoke tokens of clients, and show generated tokens", t.createToken(), t.listTokens(), t.rotateToken(), t.revokeToken(), t.importTokens(), show)
}
