package identity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

const (
	// importRetry is the pause after a failed import.
	importRetry   = 200 * time.Millisecond
	importTimeout = 10 * time.Second
	// importPatience is how long the service waits before it logs why the tokens have not been imported. The wait is
	// necessary because the policy service may start later than this service.
	importPatience = 5 * time.Second
)

// errNotImported means that the tokens of the policy service have not been copied yet.
var errNotImported = errors.New("the tokens of the policy service have not been imported yet: the policy role is unavailable")

// importTokens copies the tokens that earlier versions of the policy service stored, and then makes all tokens valid.
// The tokens are copied only once into each store. Before that, no token is valid, because an agent whose token is not
// copied yet would receive the response that its token is unknown.
func (s *Service) importTokens(ctx context.Context) {
	began, warned := time.Now(), false
	for s.tokens.published.Load() == nil {
		err := s.tryImport(ctx)
		if err == nil {
			break
		}
		if !warned && time.Since(began) > importPatience && ctx.Err() == nil {
			s.deps.Log.WarnContext(ctx, "the tokens of the policy service can't be imported yet, so no token is accepted", "error", err)
			warned = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(importRetry):
		}
	}
}

// firstRead reads the stored tokens for the first time. Before that, it reports this replica to the other replicas, so
// that they wait for this replica when they revoke tokens.
func (s *Service) firstRead(ctx context.Context) error {
	if s.cfg.Source != sqlstore.SQLite {
		if err := errors.Join(s.store.ForgetReplicas(ctx), s.store.ReportReplica(ctx, s.replica, 0)); err != nil {
			return err
		}
	}
	began := time.Now()
	s.restoreKeys(ctx)
	if err := s.readTokens(ctx); err != nil {
		return err
	}
	s.lastRead.Store(&began)
	return nil
}

func (s *Service) tryImport(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, importTimeout)
	defer cancel()
	stream, err := s.deps.Policy.ExportTokens(ctx, new(policyv1.ExportTokensRequest))
	if err != nil {
		return fmt.Errorf("request the tokens of the policy service: %w", err)
	}
	var tokens []store.Token
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("receive the tokens of the policy service: %w", err)
		}
		for _, t := range resp.GetTokens() {
			one, err := unpackExported(t)
			if err != nil {
				return err
			}
			tokens = append(tokens, one)
		}
	}
	if err := s.store.Import(ctx, tokens); err != nil {
		return err
	}
	return s.firstRead(ctx)
}

// finishImport tells the policy service that the tokens were stored, so that the policy service deletes its copies.
// Otherwise, a new store of this service would import the copies again, and a token that was revoked since then would
// become valid.
func (s *Service) finishImport(ctx context.Context) {
	for s.tryFinishImport(ctx) != nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(importPatience):
		}
	}
}

func (s *Service) tryFinishImport(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, importTimeout)
	defer cancel()
	state, err := s.store.ImportState(ctx)
	if err != nil || state == store.Moved {
		return err
	}
	stream, err := s.deps.Policy.ExportTokens(ctx, &policyv1.ExportTokensRequest{Stored: true})
	if err != nil {
		return err
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return err
	}
	return s.store.FinishImport(ctx)
}

func unpackExported(from *policyv1.ExportedToken) (store.Token, error) {
	t := from.GetToken()
	if len(from.GetSha256()) != len(store.Token{}.SHA256) {
		return store.Token{}, fmt.Errorf("the exported token %q has a hash of %d bytes", t.GetName(), len(from.GetSha256()))
	}
	return store.Token{
		Name: t.GetName(), Tenant: t.GetTenant(), Subject: t.GetSubject(), Agent: t.GetAgent(), Owner: t.GetOwner(), Groups: t.GetGroups(),
		Role: authv1.TokenRole_TOKEN_ROLE_AGENT, SHA256: [32]byte(from.GetSha256()), Created: timeOf(t.GetCreated), Expires: timeOf(t.GetExpires), LastUsed: timeOf(t.GetLastUsed), Revoked: timeOf(t.GetRevoked),
		CreatedByTenant: from.GetCreatedByTenant(), CreatedBy: t.GetCreatedBy(), RevokedByTenant: from.GetRevokedByTenant(), RevokedBy: t.GetRevokedBy(),
	}, nil
}

// timeOf returns the time in a field of a token, or the zero time if the field is absent.
func timeOf(field func() *timestamppb.Timestamp) time.Time {
	if field() == nil {
		return time.Time{}
	}
	return field().AsTime()
}
