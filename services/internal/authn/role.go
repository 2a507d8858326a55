// Package authn authenticates callers. A service of the mesh is authenticated by its certificate or by the pipe that it
// uses. A person is authenticated by a bearer token, and an agent by a bearer token or a JWT of an issuer. The
// principal on whose behalf a service makes a call is authenticated by a signed assertion.
package authn

import (
	"crypto/ed25519"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
)

// trustDomain is the SPIFFE trust domain of the mesh's certificates.
const trustDomain = "spiffe://sluice/"

// roleNames maps each mesh role to its name in certificates, configuration and messages.
var roleNames = map[authv1.Role]string{
	authv1.Role_ROLE_GATEWAY:   "gateway",
	authv1.Role_ROLE_POLICY:    "policy",
	authv1.Role_ROLE_RATELIMIT: "ratelimit",
	authv1.Role_ROLE_APPROVAL:  "approval",
	authv1.Role_ROLE_WASMAGENT: "wasmagent",
	authv1.Role_ROLE_AUDIT:     "audit",
	authv1.Role_ROLE_CONSOLE:   "console",
	authv1.Role_ROLE_IDENTITY:  "identity",
}

// Roles returns the mesh roles whose services this build contains. Each role follows the roles that it needs, so the
// gateway is last. The identity role is an exception, because it is first and waits until the policy role can import
// tokens.
func Roles() []authv1.Role {
	return []authv1.Role{
		authv1.Role_ROLE_IDENTITY, authv1.Role_ROLE_POLICY, authv1.Role_ROLE_RATELIMIT, authv1.Role_ROLE_APPROVAL, authv1.Role_ROLE_WASMAGENT, authv1.Role_ROLE_GATEWAY,
	}
}

// Peer is the mesh process at the other end of a connection. The zero value has no role.
type Peer struct {
	Role authv1.Role
	// Key is the public key of the process's certificate. It verifies the assertions that the process signs.
	Key ed25519.PublicKey
}

// RoleName returns the name of a role, for example "gateway". It returns "unknown" if the value is not a role.
func RoleName(r authv1.Role) string {
	if name, ok := roleNames[r]; ok {
		return name
	}
	return "unknown"
}

// ParseRole returns the role with the given name.
func ParseRole(name string) (authv1.Role, error) {
	for role, n := range roleNames {
		if n == name {
			return role, nil
		}
	}
	return authv1.Role_ROLE_UNSPECIFIED, fmt.Errorf("%q is not a role of the mesh", name)
}

// RoleURI returns the URI SAN for a role in a certificate. It is a SPIFFE ID such as "spiffe://sluice/gateway".
func RoleURI(r authv1.Role) string { return trustDomain + RoleName(r) }

// PeerOf returns the peer that a certificate names. The caller must have verified the certificate's chain. The
// certificate must name exactly one role and contain an Ed25519 key.
func PeerOf(cert *x509.Certificate) (Peer, error) {
	var names []string
	for _, uri := range cert.URIs {
		if name, ok := strings.CutPrefix(uri.String(), trustDomain); ok {
			names = append(names, name)
		}
	}
	if len(names) != 1 {
		return Peer{}, fmt.Errorf("the certificate names %d roles, want one URI SAN below %s", len(names), trustDomain)
	}
	role, err := ParseRole(names[0])
	if err != nil {
		return Peer{}, fmt.Errorf("read the certificate's URI SAN: %w", err)
	}
	key, ok := cert.PublicKey.(ed25519.PublicKey)
	if !ok {
		return Peer{}, errors.New("the certificate's key is not Ed25519; make it with `sluice certs`")
	}
	return Peer{Role: role, Key: key}, nil
}
