package policy

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// notServed returns the error for a method that this version does not serve. The error names an alternative.
func notServed(method, instead string) error {
	return &rpc.Error{Code: codes.Unimplemented, Reason: "NOT_SERVED", Err: errors.New(method + " is not served in this version: " + instead)}
}

// ListRevisions implements policyv1.PolicyServiceServer.
func (*Service) ListRevisions(context.Context, *policyv1.ListRevisionsRequest) (*policyv1.ListRevisionsResponse, error) {
	return nil, notServed("ListRevisions", "only the active revision is stored, and GetRevision returns it")
}

// SuggestDocument implements policyv1.PolicyServiceServer.
func (*Service) SuggestDocument(context.Context, *policyv1.SuggestDocumentRequest) (*policyv1.SuggestDocumentResponse, error) {
	return nil, notServed("SuggestDocument", "`sluice policy suggest` writes a document")
}
