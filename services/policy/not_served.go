package policy

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// notServed returns the error for a method that this version does not support. The error recommends an alternative.
func notServed(method, instead string) error {
	return &rpc.Error{Code: codes.Unimplemented, Reason: "NOT_SERVED", Err: errors.New(method + " is not served in this version: " + instead)}
}

// SuggestDocument implements policyv1.PolicyServiceServer.
func (*Service) SuggestDocument(context.Context, *policyv1.SuggestDocumentRequest) (*policyv1.SuggestDocumentResponse, error) {
	return nil, notServed("SuggestDocument", "`sluice policy suggest` writes a document")
}
