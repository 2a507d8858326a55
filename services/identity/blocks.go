package identity

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

var (
	errBlockTenant = errors.New("only operators of the tenant \"default\" may block callers of another tenant: name your own tenant (--tenant)")
	errBlocksSelf  = errors.New("this block would end your own access: ask another operator to block you")
	errBlockTarget = errors.New("name either a subject or an OAuth client, without control characters")
)

// BlockCaller implements identityv1.IdentityServiceServer.
func (s *Service) BlockCaller(ctx context.Context, req *identityv1.BlockCallerRequest) (*identityv1.BlockCallerResponse, error) {
	caller, target := authn.CallerOf(ctx), req.GetCaller()
	switch {
	case (target.GetSubject() == "") == (target.GetClient() == ""), !isPlain(target.GetSubject()), !isPlain(target.GetClient()), !isPlain(req.GetReason()):
		return nil, &rpc.Error{Code: codes.InvalidArgument, Reason: "INVALID_REQUEST", Err: errBlockTarget}
	case target.GetTenant() != caller.Tenant() && !caller.OperatesInstallation():
		return nil, &rpc.Error{Code: codes.PermissionDenied, Reason: "TENANT_REFUSED", Err: errBlockTenant}
	case target.GetTenant() == caller.Tenant() && target.GetSubject() == caller.Person.GetSubject():
		return nil, &rpc.Error{Code: codes.FailedPrecondition, Reason: "BLOCKS_CALLER", Err: errBlocksSelf}
	}
	stored, set, err := s.store.Block(ctx, store.Block{
		Tenant: target.GetTenant(), Subject: target.GetSubject(), Client: target.GetClient(), Reason: req.GetReason(),
		CreatedByTenant: caller.Tenant(), CreatedBy: caller.Person.GetSubject(),
	})
	if err != nil {
		return nil, tokenStatus(err)
	}
	s.deps.Log.WarnContext(ctx, "an operator has blocked a caller", "tenant", stored.Tenant, "subject", stored.Subject, "client", stored.Client, "operator", caller.Person.GetSubject(), "operator_tenant", caller.Tenant(), "reason", req.GetReason())
	if err := s.publish(set); err != nil {
		return nil, err
	}
	began := time.Now()
	resp := &identityv1.BlockCallerResponse{Block: packBlock(&stored, caller)}
	if resp.UnconfirmedReplicas, err = s.awaitConfirmation(ctx, set.Version); err != nil {
		return nil, err
	}
	s.metrics.recordRevocation(ctx, time.Since(began))
	return resp, nil
}

// UnblockCaller implements identityv1.IdentityServiceServer.
func (s *Service) UnblockCaller(ctx context.Context, req *identityv1.UnblockCallerRequest) (*identityv1.UnblockCallerResponse, error) {
	caller, target := authn.CallerOf(ctx), req.GetCaller()
	if target.GetTenant() != caller.Tenant() && !caller.OperatesInstallation() {
		return nil, tokenStatus(store.ErrBlockUnknown)
	}
	set, err := s.store.Unblock(ctx, target.GetTenant(), target.GetSubject(), target.GetClient())
	if err != nil {
		return nil, tokenStatus(fmt.Errorf("%s%s: %w", target.GetSubject(), target.GetClient(), err))
	}
	s.deps.Log.WarnContext(ctx, "an operator has unblocked a caller", "tenant", target.GetTenant(), "subject", target.GetSubject(), "client", target.GetClient(), "operator", caller.Person.GetSubject(), "operator_tenant", caller.Tenant())
	return new(identityv1.UnblockCallerResponse), s.publish(set)
}

// ListBlocks implements identityv1.IdentityServiceServer.
func (s *Service) ListBlocks(ctx context.Context, _ *identityv1.ListBlocksRequest) (*identityv1.ListBlocksResponse, error) {
	caller, resp := authn.CallerOf(ctx), new(identityv1.ListBlocksResponse)
	all, err := s.store.Blocks(ctx)
	if err != nil {
		return nil, tokenStatus(err)
	}
	for i := range all {
		if caller.OperatesInstallation() || all[i].Tenant == caller.Tenant() {
			resp.Blocks = append(resp.Blocks, packBlock(&all[i], caller))
		}
	}
	return resp, nil
}

func packBlock(b *store.Block, caller *authn.Caller) *identityv1.Block {
	out := &identityv1.Block{Caller: packBlocked(b), Created: packTime(b.Created), Reason: b.Reason}
	if caller.Tenant() == authn.HomeTenant || caller.Tenant() == b.CreatedByTenant {
		out.CreatedBy = b.CreatedBy
	}
	return out
}

func packBlocked(b *store.Block) *identityv1.BlockedCaller {
	return &identityv1.BlockedCaller{Tenant: b.Tenant, Subject: b.Subject, Client: b.Client}
}
