package policy

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

// maxExported is the maximum number of tokens in one message of ExportTokens.
const maxExported = 200

// refusesToken returns a decision that refuses the call if the caller's token was revoked or has expired. Otherwise it
// returns nil. The check is needed because a gateway that was suspended might not have learned yet that the token is no
// longer valid.
func (s *Service) refusesToken(set *activeSet, caller *identityv1.Principal) *policyv1.Decision {
	if caller.GetTokenId() == "" || !s.deps.Tokens.HasEnded(caller.GetTokenId()) {
		return nil
	}
	return &policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_UNAUTHENTICATED, PolicyRevision: set.Revision(),
		Message: "the token of this caller was revoked or has expired: ask an operator for another one.",
	}
}

// ExportTokens implements policyv1.PolicyServiceServer.
func (s *Service) ExportTokens(req *policyv1.ExportTokensRequest, stream grpc.ServerStreamingServer[policyv1.ExportTokensResponse]) error {
	if req.GetStored() {
		if err := s.store.DeleteTokens(stream.Context()); err != nil {
			return toStatus(storeError("the tokens could not be deleted", err))
		}
		return nil
	}
	tokens, err := s.store.Tokens(stream.Context())
	if err != nil {
		return toStatus(storeError("the tokens could not be read", err))
	}
	for len(tokens) > 0 {
		n := min(len(tokens), maxExported)
		resp := new(policyv1.ExportTokensResponse)
		for i := range tokens[:n] {
			resp.Tokens = append(resp.Tokens, packExported(&tokens[i]))
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
		tokens = tokens[n:]
	}
	return nil
}

func packExported(t *store.Token) *policyv1.ExportedToken {
	return &policyv1.ExportedToken{
		Token: &identityv1.Token{
			Name: t.Name, Tenant: t.Tenant, Subject: t.Subject, Agent: t.Agent, Owner: t.Owner, Groups: t.Groups, Role: authv1.TokenRole_TOKEN_ROLE_AGENT,
			Created: packTime(t.Created), Expires: packTime(t.Expires), LastUsed: packTime(t.LastUsed), Revoked: packTime(t.Revoked),
			CreatedBy: t.CreatedBy, RevokedBy: t.RevokedBy,
		},
		Sha256: t.SHA256[:], CreatedByTenant: t.CreatedByTenant, RevokedByTenant: t.RevokedByTenant,
	}
}

// packTime converts a time, and returns nil for the zero time.
func packTime(at time.Time) *timestamppb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return timestamppb.New(at)
}
