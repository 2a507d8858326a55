package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// authorizer refuses calls from callers that may not call the method.
type authorizer struct {
	tokens   *authn.Tokens
	verifier *authn.Verifier
	// methods maps full method names to their rules. A name that ends in "/" applies to a whole service.
	methods map[string]methodRules
	// audience maps services to the mesh roles that serve them, such as policy. A signed principal is valid only for
	// one of these roles.
	audience map[string]authv1.Role
}

// admit identifies the caller of a method and refuses a caller that the method's rules do not allow. It also verifies
// the signed principal on whose behalf a service makes the call. principals contains the signed principals in the call.
// admit returns the context for the handler.
func (g *authorizer) admit(ctx context.Context, method string, principals []string) (context.Context, error) {
	rule := g.termsOf(method)
	if rule.anyone {
		return ctx, nil
	}
	caller, signer, err := g.identify(ctx, rule.lastKnown)
	if err != nil {
		return nil, &Error{Code: codes.Unauthenticated, Reason: "UNAUTHENTICATED", Err: err}
	}
	if !g.serves(method) {
		return nil, &Error{Code: codes.Unimplemented, Reason: "UNKNOWN_METHOD", Err: fmt.Errorf("%s is not served here", method)}
	}
	if err := rule.check(caller, method); err != nil {
		return nil, err
	}
	if caller.Principal, err = g.principal(principals, caller, signer, method); err != nil {
		return nil, &Error{Code: codes.Unauthenticated, Reason: "PRINCIPAL_REFUSED", Err: err}
	}
	if rule.principal && caller.Person == nil && caller.Principal == nil {
		return nil, &Error{
			Code: codes.Unauthenticated, Reason: "PRINCIPAL_REQUIRED",
			Err: fmt.Errorf("%s requires a principal on whose behalf it is called: send a signed %s", method, authn.PrincipalKey),
		}
	}
	return authn.WithCaller(ctx, caller), nil
}

// termsOf returns the rules for a method. If the method is unknown, no caller satisfies the returned rules.
func (g *authorizer) termsOf(method string) methodRules {
	if t, ok := g.methods[method]; ok {
		return t
	}
	return g.methods["/"+serviceOf(method)+"/"]
}

func (g *authorizer) serves(method string) bool {
	if _, ok := g.methods[method]; ok {
		return true
	}
	_, whole := g.methods["/"+serviceOf(method)+"/"]
	return whole
}

func (g *authorizer) audienceOf(method string) authv1.Role { return g.audience[serviceOf(method)] }

// identify identifies the caller. A service is identified by its certificate or pipe, and a person by a bearer token.
// It refuses a call from a service that also sends a token. If the valid tokens are currently unknown and lastKnown is
// true, identify accepts a token that was valid at the last update.
func (g *authorizer) identify(ctx context.Context, lastKnown bool) (*authn.Caller, authn.Peer, error) {
	from, isRole, err := peerOf(ctx)
	if err != nil {
		return nil, authn.Peer{}, err
	}
	auth := metadata.ValueFromIncomingContext(ctx, "authorization")
	switch {
	case isRole && len(auth) > 0:
		return nil, authn.Peer{}, errors.New("both a role's certificate and a bearer token were sent: send one of them")
	case isRole:
		return &authn.Caller{Role: from.Role}, from, nil
	case len(auth) == 0:
		return nil, authn.Peer{}, errors.New("no credential: send a role's client certificate or `authorization: Bearer <operator token>`")
	case len(auth) > 1:
		return nil, authn.Peer{}, errors.New("more than one authorization was sent")
	}
	secret, ok := cutBearer(auth[0])
	if !ok {
		return nil, authn.Peer{}, errors.New("the authorization is not of the form `Bearer <token>`")
	}
	lookup := g.tokens.LookupFresh
	if lastKnown {
		lookup = func(_ context.Context, secret string) (*identityv1.Principal, error) { return g.tokens.Lookup(secret) }
	}
	person, err := lookup(ctx, secret)
	if err != nil && (!lastKnown || person == nil || !errors.Is(err, authn.ErrTokensStale)) {
		return nil, authn.Peer{}, err
	}
	return &authn.Caller{Person: person}, authn.Peer{}, nil
}

func cutBearer(header string) (string, bool) {
	scheme, secret, ok := strings.Cut(header, " ")
	return secret, ok && strings.EqualFold(scheme, "bearer") && secret != ""
}

// principal verifies the principal on whose behalf a service makes the call. A person must not send a principal.
func (g *authorizer) principal(texts []string, c *authn.Caller, signer authn.Peer, method string) (*identityv1.Principal, error) {
	switch {
	case len(texts) == 0:
		return nil, nil //nolint:nilnil // the rules of the method say whether a principal is required
	case len(texts) > 1:
		return nil, errors.New("more than one principal was sent")
	case c.Person != nil:
		return nil, errors.New("people act only for themselves: send either a token or a principal")
	}
	p, err := g.verifier.Verify(texts[0], signer, g.audienceOf(method))
	if err == nil && g.tokens != nil && g.tokens.IsBlocked(p) { // for example, the owner of a running agent was blocked
		return nil, authn.ErrBlocked
	}
	if err == nil && g.tokens != nil && signer.Role == authv1.Role_ROLE_WASMAGENT {
		p = g.tokens.WithCurrentPerson(p)
	}
	return p, err
}

// check returns an error if the rules do not allow a caller to call the method. For a person, the error contains the id
// and the role of the token, and the allowed roles.
func (c callers) check(caller *authn.Caller, method string) error {
	if caller.Person == nil {
		if c.roles[caller.Role] {
			return nil
		}
		return refusedError(fmt.Errorf("%s is not open to the role %s", method, authn.RoleName(caller.Role)), nil)
	}
	if c.tokens[caller.Person.GetRole()] {
		return nil
	}
	token, role := caller.Person.GetTokenId(), enum.Name(caller.Person.GetRole())
	return refusedError(fmt.Errorf("%s is not open to the token %q, whose role is %s", method, token, role),
		map[string]string{"token": token, "role": role, "needs": strings.Join(c.tokenRoles(), ",")})
}

func refusedError(err error, facts map[string]string) error {
	return &Error{Code: codes.PermissionDenied, Reason: "CALLER_REFUSED", Facts: facts, Err: err}
}

// peerOf returns the mesh service at the other end of the connection, and reports whether the client is such a service.
// It returns an error if the client has a certificate without a role.
func peerOf(ctx context.Context) (authn.Peer, bool, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return authn.Peer{}, false, errors.New("the connection has no peer")
	}
	switch info := p.AuthInfo.(type) {
	case pipeInfo:
		return info.peer, true, nil
	case *netPeer:
		return info.role()
	default:
		return authn.Peer{}, false, nil
	}
}
