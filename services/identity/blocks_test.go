package identity_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// block returns a request that blocks a subject.
func block(tenant, subject string) *identityv1.BlockCallerRequest {
	return &identityv1.BlockCallerRequest{Caller: &identityv1.BlockedCaller{Tenant: tenant, Subject: subject}, Reason: "has left"}
}

// A person who is blocked loses her sessions, and can't sign in again until the block ends.
func TestBlockCaller_EndsSessionsAndRefusesSignIns(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	session, operator := s.signIn(t, 0), identityv1.NewIdentityServiceClient(s.Person(t, "operator"))
	for range 2 { // a second block changes nothing
		resp, err := operator.BlockCaller(t.Context(), block("default", "corp/ana"))
		if err != nil || resp.GetBlock().GetReason() != "has left" || resp.GetBlock().GetCreatedBy() == "" || resp.GetUnconfirmedReplicas() != 0 {
			t.Fatalf("%v, %v", resp, err)
		}
	}
	_, err := s.with(t, session.GetSecret()).GetCaller(t.Context(), new(identityv1.GetCallerRequest))
	rpctest.WantStatus(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
	_, err = s.client(t, "").CreateSession(t.Context(), code(0))
	rpctest.WantStatus(t, err, codes.PermissionDenied, "CALLER_BLOCKED")
	list, err := identityv1.NewIdentityServiceClient(s.Person(t, "viewer")).ListBlocks(t.Context(), new(identityv1.ListBlocksRequest))
	if err != nil || len(list.GetBlocks()) != 1 || list.GetBlocks()[0].GetCaller().GetSubject() != "corp/ana" {
		t.Errorf("%v, %v", list, err)
	}
	unblock := &identityv1.UnblockCallerRequest{Caller: block("default", "corp/ana").GetCaller()}
	if _, err := operator.UnblockCaller(t.Context(), unblock); err != nil {
		t.Fatal(err)
	}
	if _, err := s.with(t, session.GetSecret()).GetCaller(t.Context(), new(identityv1.GetCallerRequest)); err != nil {
		t.Errorf("after the block: %v", err)
	}
	_, err = operator.UnblockCaller(t.Context(), unblock)
	rpctest.WantStatus(t, err, codes.NotFound, "BLOCK_UNKNOWN")
}

func TestBlockCaller_RefusesRequestsThatItMust(t *testing.T) {
	t.Parallel()
	s := serve(t, options{tokens: tokensOfTwoTenants()})
	operator, acme := identityv1.NewIdentityServiceClient(s.Person(t, "operator")), identityv1.NewIdentityServiceClient(s.Person(t, "acme-operator"))
	_, err := acme.BlockCaller(t.Context(), block("default", "ana"))
	rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
	_, err = acme.BlockCaller(t.Context(), block("acme", "acme-operator"))
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "BLOCKS_CALLER")
	_, err = operator.BlockCaller(t.Context(), &identityv1.BlockCallerRequest{Caller: &identityv1.BlockedCaller{Tenant: "default", Subject: "a", Client: "b"}})
	rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	_, err = operator.BlockCaller(t.Context(), block("default", "a\x1b[31mb"))
	rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	// Each tenant sees its own blocks. The operator of the installation sees and ends all.
	if _, err := acme.BlockCaller(t.Context(), block("acme", "zoe")); err != nil {
		t.Fatal(err)
	}
	if _, err := operator.BlockCaller(t.Context(), block("default", "ben")); err != nil {
		t.Fatal(err)
	}
	list, err := acme.ListBlocks(t.Context(), new(identityv1.ListBlocksRequest))
	if err != nil || len(list.GetBlocks()) != 1 || list.GetBlocks()[0].GetCaller().GetSubject() != "zoe" {
		t.Errorf("%v, %v", list, err)
	}
	_, err = acme.UnblockCaller(t.Context(), &identityv1.UnblockCallerRequest{Caller: block("default", "ben").GetCaller()})
	rpctest.WantStatus(t, err, codes.NotFound, "BLOCK_UNKNOWN")
	if list, err = operator.ListBlocks(t.Context(), new(identityv1.ListBlocksRequest)); err != nil || len(list.GetBlocks()) != 2 {
		t.Errorf("%v, %v", list, err)
	}
}
