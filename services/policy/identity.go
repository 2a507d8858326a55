package policy

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

const (
	// beat is how often a watcher hears that nothing has changed. The contracts
	// promise 500 ms.
	beat = 400 * time.Millisecond
	// defaultPage is how many entries a list has where the request doesn't say.
	defaultPage = 100
)

// errConfigured means that tokens can't be changed by RPC.
var errConfigured = errors.New("the tokens come from the configuration (auth.tokens): change them there")

// catalog is the catalogue's contract. This version offers none of it: every
// method answers UNIMPLEMENTED.
type catalog struct {
	policyv1.UnimplementedCatalogServiceServer
}

// identity implements identityv1.IdentityServiceServer over the tokens of the
// configuration, which don't change while the service runs.
type identity struct {
	identityv1.UnimplementedIdentityServiceServer
	records []*identityv1.TokenRecord
}

// CreateToken implements identityv1.IdentityServiceServer.
func (*identity) CreateToken(context.Context, *identityv1.CreateTokenRequest) (*identityv1.CreateTokenResponse, error) {
	return nil, &rpc.Error{Code: codes.FailedPrecondition, Reason: "TOKENS_CONFIGURED", Err: errConfigured}
}

// RevokeToken implements identityv1.IdentityServiceServer.
func (*identity) RevokeToken(context.Context, *identityv1.RevokeTokenRequest) (*identityv1.RevokeTokenResponse, error) {
	return nil, &rpc.Error{Code: codes.FailedPrecondition, Reason: "TOKENS_CONFIGURED", Err: errConfigured}
}

// ListTokens implements identityv1.IdentityServiceServer.
func (i *identity) ListTokens(ctx context.Context, req *identityv1.ListTokensRequest) (*identityv1.ListTokensResponse, error) {
	caller := authn.CallerOf(ctx)
	everything := caller.Tenant() == "default" && caller.Person.GetRole() == authv1.TokenRole_TOKEN_ROLE_OPERATOR
	var tokens []*identityv1.Token
	for _, r := range i.records {
		t := r.GetToken()
		if (everything || t.GetTenant() == caller.Tenant()) && t.GetName() > req.GetPageToken() {
			tokens = append(tokens, t)
		}
	}
	slices.SortFunc(tokens, func(a, b *identityv1.Token) int { return cmp.Compare(a.GetName(), b.GetName()) })
	size := cmp.Or(int(req.GetPageSize()), defaultPage)
	resp := &identityv1.ListTokensResponse{Tokens: tokens}
	if len(tokens) > size {
		resp.Tokens = tokens[:size]
		resp.NextPageToken = tokens[size-1].GetName()
	}
	return resp, nil
}

// Watch implements identityv1.IdentityServiceServer.
func (i *identity) Watch(_ *identityv1.WatchRequest, stream grpc.ServerStreamingServer[identityv1.WatchResponse]) error {
	resp := &identityv1.WatchResponse{Set: &identityv1.TokenSet{Tokens: i.records}}
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		if err := stream.Send(resp); err != nil {
			return err
		}
		resp = &identityv1.WatchResponse{}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-tick.C:
		}
	}
}
