package authn

import (
	"context"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// Caller is who an RPC comes from, as the server has verified it. Exactly one of
// Role and Person is set.
type Caller struct {
	// Role is the process of the mesh that calls; unspecified for a person.
	Role authv1.Role
	// Person is whose token was presented; nil for a role.
	Person *identityv1.Principal
	// Principal is on whose behalf a role calls; nil where it calls for itself.
	Principal *identityv1.Principal
}

// Tenant returns the tenant whose things the caller may see; empty for a role
// that calls for itself.
func (c *Caller) Tenant() string {
	if c.Person != nil {
		return c.Person.GetTenant()
	}
	return c.Principal.GetTenant()
}

type (
	callerKey   struct{}
	behalfOfKey struct{}
)

// WithCaller returns a context in which the server's handlers find the caller.
func WithCaller(ctx context.Context, c *Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller that the interceptors verified; nil where none is,
// which every handler must refuse.
func CallerOf(ctx context.Context) *Caller {
	c, _ := ctx.Value(callerKey{}).(*Caller)
	return c
}

// OnBehalfOf returns a context whose outgoing calls carry p, signed for the role
// that is called.
func OnBehalfOf(ctx context.Context, p *identityv1.Principal) context.Context {
	return context.WithValue(ctx, behalfOfKey{}, p)
}

// BehalfOf returns the principal of [OnBehalfOf]; nil where there is none.
func BehalfOf(ctx context.Context) *identityv1.Principal {
	p, _ := ctx.Value(behalfOfKey{}).(*identityv1.Principal)
	return p
}
