package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

const (
	// heartbeatInterval is the interval at which a watcher gets a message if nothing has changed. It is below the 500
	// ms that the contracts promise.
	heartbeatInterval = 400 * time.Millisecond
	// defaultPageSize is the page size if the request sets no page size.
	defaultPageSize = 100
)

var (
	errConfigured = errors.New("the tokens come from the configuration (auth.tokens): change them there")
	// errUnknownToken means that the caller may not see a token with the requested name, or that there is no such
	// token.
	errUnknownToken = errors.New("there is no token of this name in your tenant")
)

// identity implements identityv1.IdentityServiceServer over the tokens of the configuration, which don't change while
// the service runs.
type identity struct {
	identityv1.UnimplementedIdentityServiceServer
	records []*identityv1.TokenRecord
}

// CreateToken implements identityv1.IdentityServiceServer.
func (*identity) CreateToken(context.Context, *identityv1.CreateTokenRequest) (*identityv1.CreateTokenResponse, error) {
	return nil, &rpc.Error{Code: codes.FailedPrecondition, Reason: "TOKENS_CONFIGURED", Err: errConfigured}
}

// RevokeToken implements identityv1.IdentityServiceServer.
func (i *identity) RevokeToken(ctx context.Context, req *identityv1.RevokeTokenRequest) (*identityv1.RevokeTokenResponse, error) {
	named := func(t *identityv1.Token) bool { return t.GetName() == req.GetName() }
	if !slices.ContainsFunc(i.visibleTokens(ctx), named) {
		return nil, &rpc.Error{Code: codes.NotFound, Reason: "TOKEN_UNKNOWN", Err: fmt.Errorf("token %q: %w", req.GetName(), errUnknownToken)}
	}
	return nil, &rpc.Error{Code: codes.FailedPrecondition, Reason: "TOKENS_CONFIGURED", Err: errConfigured}
}

// ListTokens implements identityv1.IdentityServiceServer.
func (i *identity) ListTokens(ctx context.Context, req *identityv1.ListTokensRequest) (*identityv1.ListTokensResponse, error) {
	earlier := func(t *identityv1.Token) bool { return t.GetName() <= req.GetPageToken() }
	tokens := slices.DeleteFunc(i.visibleTokens(ctx), earlier)
	slices.SortFunc(tokens, func(a, b *identityv1.Token) int { return cmp.Compare(a.GetName(), b.GetName()) })
	size := cmp.Or(int(req.GetPageSize()), defaultPageSize)
	resp := &identityv1.ListTokensResponse{Tokens: tokens}
	if len(tokens) > size {
		resp.Tokens = tokens[:size]
		resp.NextPageToken = tokens[size-1].GetName()
	}
	return resp, nil
}

// visibleTokens returns the tokens that the caller may see: the tokens of the caller's tenant, or all tokens if the
// caller is an operator of the installation.
func (i *identity) visibleTokens(ctx context.Context) []*identityv1.Token {
	caller := authn.CallerOf(ctx)
	all := operatesInstallation(caller)
	var tokens []*identityv1.Token
	for _, r := range i.records {
		if all || r.GetToken().GetTenant() == caller.Tenant() {
			tokens = append(tokens, r.GetToken())
		}
	}
	return tokens
}

func operatesInstallation(caller *authn.Caller) bool {
	return caller.Tenant() == homeTenant && caller.Person.GetRole() == authv1.TokenRole_TOKEN_ROLE_OPERATOR
}

// WatchTokens implements identityv1.IdentityServiceServer.
func (i *identity) WatchTokens(_ *identityv1.WatchTokensRequest, stream grpc.ServerStreamingServer[identityv1.WatchTokensResponse]) error {
	resp := &identityv1.WatchTokensResponse{Set: &identityv1.TokenSet{Tokens: i.records}}
	tick := time.NewTicker(heartbeatInterval)
	defer tick.Stop()
	for {
		if err := stream.Send(resp); err != nil {
			return err
		}
		resp = &identityv1.WatchTokensResponse{}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-tick.C:
		}
	}
}
