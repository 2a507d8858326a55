package authn

import (
	"context"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// Caller is the verified caller of an RPC. Exactly one of Role and Person is set.
type Caller struct {
	// Role is the mesh role of the service that makes the call. It is unspecified if the caller is a person.
	Role authv1.Role
	// Person is the principal of the presented token, or nil if the caller is a service of the mesh.
	Person *identityv1.Principal
	// Principal is the principal on whose behalf a service of the mesh makes the call. It is nil if the service makes
	// the call on its own behalf.
	Principal *identityv1.Principal
}

// Tenant returns the tenant whose data the caller may see. It is empty if a service of the mesh makes the call on its
// own behalf.
func (c *Caller) Tenant() string {
	if c.Person != nil {
		return c.Person.GetTenant()
	}
	return c.Principal.GetTenant()
}

// HomeTenant is the tenant whose operators manage the whole mesh.
const HomeTenant = "default"

// OperatesInstallation reports whether the caller is an operator of the tenant "default", who manages the whole mesh.
func (c *Caller) OperatesInstallation() bool {
	return c.Tenant() == HomeTenant && c.Person.GetRole() == authv1.TokenRole_TOKEN_ROLE_OPERATOR
}

type (
	callerKey     struct{}
	onBehalfOfKey struct{}
)

// WithCaller returns a context from which a handler gets the caller with [CallerOf].
func WithCaller(ctx context.Context, c *Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller that the interceptors verified, or nil if there is none. Every handler must refuse a nil
// caller.
func CallerOf(ctx context.Context) *Caller {
	c, _ := ctx.Value(callerKey{}).(*Caller)
	return c
}

// OnBehalfOf returns a context for outgoing calls on behalf of p. Each call transmits p in an assertion for the service
// that is called.
func OnBehalfOf(ctx context.Context, p *identityv1.Principal) context.Context {
	return context.WithValue(ctx, onBehalfOfKey{}, p)
}

// PrincipalOf returns the principal that [OnBehalfOf] set, or nil if there is none.
func PrincipalOf(ctx context.Context) *identityv1.Principal {
	p, _ := ctx.Value(onBehalfOfKey{}).(*identityv1.Principal)
	return p
}
