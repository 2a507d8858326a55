package gatewaytest

import (
	"context"
	"errors"
)

// Credential is the credential of a caller in a test. It is valid while the function returns nil. It implements
// authn.Credential.
type Credential func() error

// Check implements authn.Credential.
func (c Credential) Check(context.Context) error { return c() }

// IsValid implements authn.Credential.
func (c Credential) IsValid() bool { return c() == nil }

var errRevoked = errors.New("the token was revoked")

// RevokedWhen returns a credential that is invalid while revoked() returns true.
func RevokedWhen(revoked func() bool) Credential {
	return func() error {
		if revoked() {
			return errRevoked
		}
		return nil
	}
}
