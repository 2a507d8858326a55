package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

const (
	// defaultPageSize is the page size if the request sets no page size.
	defaultPageSize = 100
	// minTokenLife and maxTokenLife are the minimum and the maximum lifetime of a new token. clockTolerance is added to
	// the maximum, because the caller's clock may differ.
	minTokenLife   = time.Minute
	maxTokenLife   = 365 * 24 * time.Hour
	clockTolerance = time.Minute
	// maxOwnGroups is the maximum number of groups of a stored token.
	maxOwnGroups = 16
)

var (
	errConfigured = errors.New("it is in the configuration (auth.tokens): change or remove it there, which needs no restart")
	// errInvalidToken means that the requested token may not be created.
	errInvalidToken = errors.New("the token can't be created")
	// errTokenOwner means that the caller can't own the token, or is not the owner whose connections the token would use.
	errTokenOwner = errors.New("the owner of the token is refused")
	// errTokenTenant means that an operator of a tenant requests a token for another tenant.
	errTokenTenant = errors.New("only operators of the tenant \"default\" may create tokens of another tenant: name your own tenant (--tenant)")
)

// CreateToken implements identityv1.IdentityServiceServer.
func (s *Service) CreateToken(ctx context.Context, req *identityv1.CreateTokenRequest) (*identityv1.CreateTokenResponse, error) {
	caller, want := authn.CallerOf(ctx), req.GetToken()
	t := store.Token{
		Name: want.GetName(), Tenant: want.GetTenant(), Subject: want.GetSubject(), Agent: want.GetAgent(), Owner: want.GetOwner(),
		Groups: slices.Sorted(slices.Values(want.GetGroups())), Servers: slices.Sorted(slices.Values(want.GetServers())), Expires: want.GetExpires().AsTime(),
		Role: authv1.TokenRole_TOKEN_ROLE_AGENT, CreatedByTenant: caller.Tenant(), CreatedBy: caller.Person.GetSubject(), UsesConnections: want.GetUsesConnections(),
	}
	if req.GetOwnedByCaller() {
		t.Owner = caller.Person.GetSubject()
	}
	if err := s.checkNewToken(caller, &t, req); err != nil {
		return nil, tokenStatus(err)
	}
	secret := authn.NewAgentSecret()
	t.SHA256 = authn.HashSecret(secret)
	created, set, err := s.store.CreateToken(ctx, t)
	if err != nil {
		return nil, tokenStatus(err)
	}
	if err := s.publish(set); err != nil {
		return nil, err
	}
	s.deps.Log.InfoContext(ctx, "an operator has created a token", "token", t.Name, "tenant", t.Tenant, "agent", t.Agent, "owner", t.Owner, "uses_connections", t.UsesConnections, "expires", t.Expires, "operator", t.CreatedBy, "operator_tenant", t.CreatedByTenant)
	return &identityv1.CreateTokenResponse{Token: packListed(&created, caller), Secret: secret}, nil
}

// checkTokenOwner returns an error if the caller may create no token of the tenant, or no token with the owner.
func checkTokenOwner(caller *authn.Caller, t *store.Token, isOwnedByCaller bool) error {
	switch {
	case t.Tenant != caller.Tenant() && !caller.OperatesInstallation():
		return fmt.Errorf("%s: %w", t.Tenant, errTokenTenant)
	case isOwnedByCaller && t.Tenant != caller.Tenant(): // another person of that tenant may have the caller's subject
		return fmt.Errorf("%w: you are a person of the tenant %s, and can't own a token of the tenant %s: name an owner of that tenant with --owner, or use --no-owner", errTokenOwner, caller.Tenant(), t.Tenant)
	case t.UsesConnections && principal.ActsFor(caller.Person) != principal.Key{Tenant: t.Tenant, Subject: t.Owner}:
		return fmt.Errorf("%w: a token can use only the connections of the person who creates it: leave out --owner, and name no tenant but your own", errTokenOwner)
	default:
		return nil
	}
}

// checkNewToken returns an error if the caller may not create the token.
func (s *Service) checkNewToken(caller *authn.Caller, t *store.Token, req *identityv1.CreateTokenRequest) error {
	if err := checkTokenOwner(caller, t, req.GetOwnedByCaller()); err != nil {
		return err
	}
	want := req.GetToken()
	configured := s.tokens.identities()
	for _, r := range configured.Tokens {
		if r.GetToken().GetName() == t.Name {
			return fmt.Errorf("%s: %w", t.Name, store.ErrTokenExists)
		}
	}
	invalid := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", errInvalidToken, fmt.Sprintf(format, args...))
	}
	known := configured.groupsOfTenant(t.Tenant)
	for _, group := range t.Groups {
		if !known[group] {
			return invalid("the configuration has no group %q for the tenant %s: name it under `groups`, or in the groups of a configured token of that tenant", group, t.Tenant)
		}
	}
	switch left := time.Until(t.Expires); {
	case want.GetRole() != authv1.TokenRole_TOKEN_ROLE_AGENT:
		return invalid("its role is not agent: tokens of people are set in the configuration (auth.tokens)")
	case strings.TrimSpace(t.Agent) == "":
		return invalid("it names no agent")
	case principal.IsReserved(t.Subject):
		return invalid("the subject %q is one that only the mesh makes: choose one that does not begin with agent:, act: or system:", t.Subject)
	case !isPlain(t.Agent) || !isPlain(t.Subject) || !isPlain(t.Owner):
		return invalid("the agent, the subject or the owner contains control characters")
	case len(t.Groups) > maxOwnGroups:
		return invalid("it has %d groups, more than %d", len(t.Groups), maxOwnGroups)
	case want.GetExpires() == nil || left < minTokenLife || left > maxTokenLife+clockTolerance:
		return invalid("it must expire between 1 minute and 1 year from now")
	}
	return nil
}

func isPlain(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// RotateToken implements identityv1.IdentityServiceServer.
func (s *Service) RotateToken(ctx context.Context, req *identityv1.RotateTokenRequest) (*identityv1.RotateTokenResponse, error) {
	caller := authn.CallerOf(ctx)
	for _, t := range s.configuredTokens(caller) {
		if t.GetName() == req.GetName() {
			return nil, tokenStatus(fmt.Errorf("token %q: %w", req.GetName(), errConfigured))
		}
	}
	r := store.Rotation{Name: req.GetName(), OperatorTenant: caller.Tenant(), Operator: caller.Person.GetSubject(), AnyTenant: caller.OperatesInstallation(), Overlap: req.GetOverlap().AsDuration()}
	if req.GetExpires() != nil {
		r.Expires = req.GetExpires().AsTime()
		if left := time.Until(r.Expires); left < minTokenLife || left > maxTokenLife+clockTolerance {
			return nil, tokenStatus(fmt.Errorf("%w: it must expire between 1 minute and 1 year from now", errInvalidToken))
		}
	}
	secret := authn.NewAgentSecret()
	r.SHA256 = authn.HashSecret(secret)
	t, set, err := s.store.RotateToken(ctx, r)
	if err != nil {
		return nil, tokenStatus(fmt.Errorf("token %q: %w", req.GetName(), err))
	}
	if err := s.publish(set); err != nil {
		return nil, err
	}
	resp := &identityv1.RotateTokenResponse{Token: packListed(&t, caller), Secret: secret}
	if req.GetOverlap().AsDuration() > 0 {
		resp.OldSecretExpires = timestamppb.New(t.Previous[0].Until)
	}
	// Return the new secret even if it is unknown which replicas accept it, because the old secret might already be
	// invalid.
	if resp.UnconfirmedReplicas, err = s.awaitConfirmation(ctx, set.Version); err != nil {
		s.deps.Log.WarnContext(ctx, "it is not known whether all services use the new secret of a token", "token", t.Name, "error", err)
		resp.UnconfirmedReplicas = -1
	}
	s.deps.Log.InfoContext(ctx, "an operator has replaced the secret of a token", "token", t.Name, "tenant", t.Tenant, "agent", t.Agent, "overlap", r.Overlap, "expires", t.Expires, "operator", caller.Person.GetSubject(), "operator_tenant", caller.Tenant())
	return resp, nil
}

// RevokeToken implements identityv1.IdentityServiceServer.
func (s *Service) RevokeToken(ctx context.Context, req *identityv1.RevokeTokenRequest) (*identityv1.RevokeTokenResponse, error) {
	caller := authn.CallerOf(ctx)
	if (req.GetName() == "") == (req.GetAgent() == "") {
		return nil, &rpc.Error{Code: codes.InvalidArgument, Reason: "INVALID_REQUEST", Err: errors.New("set either the name of a token or an agent")}
	}
	what := fmt.Sprintf("token %q", req.GetName())
	if req.GetAgent() != "" {
		what = fmt.Sprintf("tokens of agent %q", req.GetAgent())
	}
	resp := new(identityv1.RevokeTokenResponse)
	for _, t := range s.configuredTokens(caller) {
		if req.GetName() == t.GetName() || req.GetAgent() != "" && req.GetAgent() == t.GetAgent() {
			resp.Configured = append(resp.Configured, t.GetName())
		}
	}
	if len(resp.GetConfigured()) > 0 && req.GetName() != "" {
		return nil, tokenStatus(fmt.Errorf("%s: %w", what, errConfigured))
	}
	revoked, set, err := s.store.RevokeTokens(ctx, store.Revocation{
		Name: req.GetName(), Agent: req.GetAgent(), OperatorTenant: caller.Tenant(), Operator: caller.Person.GetSubject(), AnyTenant: caller.OperatesInstallation(),
	})
	if len(resp.GetConfigured()) > 0 && errors.Is(err, store.ErrTokenUnknown) {
		err = errConfigured
	}
	if err != nil {
		return nil, tokenStatus(fmt.Errorf("%s: %w", what, err))
	}
	for n := range revoked {
		t := &revoked[n]
		s.deps.Log.WarnContext(ctx, "an operator has revoked a token", "token", t.Name, "tenant", t.Tenant, "agent", t.Agent, "owner", t.Owner, "operator", t.RevokedBy, "operator_tenant", t.RevokedByTenant)
		resp.Tokens = append(resp.Tokens, packListed(t, caller))
	}
	if err := s.publish(set); err != nil {
		return nil, err
	}
	began := time.Now()
	if resp.UnconfirmedReplicas, err = s.awaitConfirmation(ctx, set.Version); err != nil {
		return nil, err
	}
	s.metrics.recordRevocation(ctx, time.Since(began))
	return resp, nil
}

// tokenStatus adds a gRPC code and a reason to an error about a token.
func tokenStatus(err error) error {
	switch {
	case errors.Is(err, errConfigured):
		return &rpc.Error{Code: codes.FailedPrecondition, Reason: "TOKENS_CONFIGURED", Err: err}
	case errors.Is(err, store.ErrTokenUnknown):
		return &rpc.Error{Code: codes.NotFound, Reason: "TOKEN_UNKNOWN", Err: err}
	case errors.Is(err, store.ErrTokenEnded):
		return &rpc.Error{Code: codes.FailedPrecondition, Reason: "TOKEN_ENDED", Err: err}
	case errors.Is(err, store.ErrTokenExists):
		return &rpc.Error{Code: codes.AlreadyExists, Reason: "TOKEN_EXISTS", Err: err}
	case errors.Is(err, store.ErrBlocksFull):
		return &rpc.Error{Code: codes.ResourceExhausted, Reason: "BLOCKS_FULL", Err: err}
	case errors.Is(err, store.ErrBlockUnknown):
		return &rpc.Error{Code: codes.NotFound, Reason: "BLOCK_UNKNOWN", Err: err}
	case errors.Is(err, store.ErrSession):
		return &rpc.Error{Code: codes.FailedPrecondition, Reason: "TOKEN_IS_SESSION", Err: err}
	case errors.Is(err, store.ErrSignInsTooOften):
		return &rpc.Error{Code: codes.ResourceExhausted, Reason: "SIGN_IN_TOO_OFTEN", Err: err}
	case errors.Is(err, store.ErrSessionsFull):
		return &rpc.Error{Code: codes.ResourceExhausted, Reason: "SESSIONS_FULL", Err: err}
	case errors.Is(err, store.ErrRotatedTooOften):
		return &rpc.Error{Code: codes.ResourceExhausted, Reason: "TOKEN_ROTATED", Err: err}
	case errors.Is(err, store.ErrTokensFull):
		return &rpc.Error{Code: codes.ResourceExhausted, Reason: "TOKENS_FULL", Err: err}
	case errors.Is(err, errTokenTenant):
		return &rpc.Error{Code: codes.PermissionDenied, Reason: "TENANT_REFUSED", Err: err}
	case errors.Is(err, errTokenOwner), errors.Is(err, store.ErrOwnerOnly):
		return &rpc.Error{Code: codes.PermissionDenied, Reason: "OWNER_REFUSED", Err: err}
	case errors.Is(err, errInvalidToken):
		return &rpc.Error{Code: codes.InvalidArgument, Reason: "TOKEN_INVALID", Err: err}
	default:
		return &rpc.Error{Code: codes.Unavailable, Reason: "CATALOGUE_STORE_AWAY", Err: fmt.Errorf("the tokens could not be read or changed: %w: %w", sqlstore.ErrUnavailable, err)}
	}
}

// ListTokens implements identityv1.IdentityServiceServer.
func (s *Service) ListTokens(ctx context.Context, req *identityv1.ListTokensRequest) (*identityv1.ListTokensResponse, error) {
	tokens, err := s.visibleTokens(ctx, req.GetEnded())
	if err != nil {
		return nil, tokenStatus(err)
	}
	earlier := func(t *identityv1.Token) bool { return t.GetName() <= req.GetPageToken() }
	tokens = slices.DeleteFunc(tokens, earlier)
	slices.SortFunc(tokens, func(a, b *identityv1.Token) int { return cmp.Compare(a.GetName(), b.GetName()) })
	size := cmp.Or(int(req.GetPageSize()), defaultPageSize)
	resp := &identityv1.ListTokensResponse{Tokens: tokens}
	if len(tokens) > size {
		resp.Tokens = tokens[:size]
		resp.NextPageToken = tokens[size-1].GetName()
	}
	return resp, nil
}

// visibleTokens returns the tokens that the caller may see. These are the tokens of the caller's tenant, or all tokens
// if the caller is an operator of the installation. Tokens that have expired or were revoked are included only if ended
// is true.
func (s *Service) visibleTokens(ctx context.Context, ended bool) ([]*identityv1.Token, error) {
	caller, now := authn.CallerOf(ctx), time.Now()
	tokens := s.configuredTokens(caller)
	names := make(map[string]bool, len(tokens))
	for _, t := range s.tokens.identities().Tokens {
		names[t.GetToken().GetName()] = true
	}
	stored, err := s.store.Tokens(ctx)
	if err != nil {
		return nil, err
	}
	for n := range stored {
		t := &stored[n]
		isValid := t.Revoked.IsZero() && now.Before(t.Expires) && !s.tokens.hasEnded(t)
		if (ended || isValid) && !names[t.Name] && (caller.OperatesInstallation() || t.Tenant == caller.Tenant()) {
			tokens = append(tokens, packListed(t, caller))
		}
	}
	return tokens, nil
}

// configuredTokens returns the tokens of the configuration that the caller may see.
func (s *Service) configuredTokens(caller *authn.Caller) []*identityv1.Token {
	var tokens []*identityv1.Token
	for _, r := range s.tokens.identities().Tokens {
		if caller.OperatesInstallation() || r.GetToken().GetTenant() == caller.Tenant() {
			tokens = append(tokens, r.GetToken())
		}
	}
	return tokens
}

// ReportTokenUse implements identityv1.IdentityServiceServer.
func (s *Service) ReportTokenUse(ctx context.Context, req *identityv1.ReportTokenUseRequest) (*identityv1.ReportTokenUseResponse, error) {
	if err := s.storeUses(ctx, req.GetUses()); err != nil {
		return nil, tokenStatus(err)
	}
	return new(identityv1.ReportTokenUseResponse), nil
}
