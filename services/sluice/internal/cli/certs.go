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

// renewBefore is how long before its expiry a certificate is replaced.
const renewBefore = 30 * 24 * time.Hour

func (t *tool) certs() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "certs",
		Short: "Create a development CA and a certificate for each role",
		Long: `Create a development CA, and a certificate for each role that it signs, valid for a
year. An existing CA is kept; the roles' certificates are replaced. A role needs
ca.pem, ROLE.pem and ROLE-key.pem, and never ca-key.pem.`,
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
			what := "kept the CA"
			if made {
				what = "made a CA"
			}
			_, err = fmt.Fprintf(t.out, "%s and made certificates for %d roles in %s\n", what, len(roles), dir)
			return err
		},
	}
	c.Flags().StringVar(&dir, "dir", "certs", "the folder to write to")
	return c
}

// setup creates what a deployment of separate roles needs. Each role has a folder of its own, which only that role
// mounts.
func (t *tool) setup() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "setup",
		Short: "Create the keys and tokens of a deployment, with a folder for each role",
		Long: `Create in --dir:

  ca/            the CA with its key; no service needs it
  ROLE/          ca.pem, ROLE.pem and ROLE-key.pem, only for that role
  policy/tokens/ the hashes of the tokens
  operator/      ca.pem, and tokens/operator and tokens/agent with their hashes,
                 for people

Existing files are kept, so the command may run at every start. A certificate
that another CA signed, or that expires within 30 days, is replaced.`,
		Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			if err := setupAll(dir); err != nil {
				return err
			}
			_, err := fmt.Fprintf(t.out, "keys and tokens are in place below %s\n", dir)
			return err
		},
	}
	c.Flags().StringVar(&dir, "dir", "setup", "the folder to write to")
	return c
}

// setupAll creates what is missing. A lock admits one process at a time: otherwise two processes could each create a
// CA, and one of them would sign certificates that no role trusts.
func setupAll(dir string) (err error) {
	keys := filepath.Join(dir, "ca") // no service sees this folder
	if err := os.MkdirAll(keys, 0o700); err != nil {
		return fmt.Errorf("make the folder of the CA: %w", err)
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
		if id, _, err := pki.Load(own, role); err == nil && lasts(id, authority) {
			continue
		}
		if err := authority.WriteRole(own, role); err != nil {
			return err
		}
	}
	return pki.WriteFile(filepath.Join(dir, "operator", "ca.pem"), authority.CertPEM(), 0o644)
}

// lasts reports whether a role's certificate was signed by the authority and does not expire soon.
func lasts(id *pki.Identity, authority *pki.Authority) bool {
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
		for _, reader := range []string{"policy", "operator"} { // policy resolves the tokens of the configuration, and the operator checks it
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
				return fmt.Errorf("%s does not exist: tokens are generated by %s or %s", tokenFile(f, given[0]), t.command("up"), t.command("setup"))
			}
			if err != nil {
				return fmt.Errorf("read the token: %w", err)
			}
			_, err = fmt.Fprintln(t.out, strings.TrimSpace(string(raw)))
			return err
		},
	}
	return group("token", "Show generated tokens", show)
}
