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

// TestDocuments implements policyv1.PolicyServiceServer.
func (*Service) TestDocuments(context.Context, *policyv1.TestDocumentsRequest) (*policyv1.TestDocumentsResponse, error) {
	return nil, notServed("TestDocuments", "`sluice policy explain`, or ExplainCall, decides a call by the active documents")
}

// SimulateCall implements policyv1.PolicyServiceServer.
func (*Service) SimulateCall(context.Context, *policyv1.SimulateCallRequest) (*policyv1.SimulateCallResponse, error) {
	return nil, notServed("SimulateCall", "start a mesh of your own with those documents, and run `sluice policy explain` there")
}

// SuggestDocument implements policyv1.PolicyServiceServer.
func (*Service) SuggestDocument(context.Context, *policyv1.SuggestDocumentRequest) (*policyv1.SuggestDocumentResponse, error) {
	return nil, notServed("SuggestDocument", "`sluice policy suggest` writes a document")
}

// ImportDocument implements policyv1.PolicyServiceServer.
func (*Service) ImportDocument(context.Context, *policyv1.ImportDocumentRequest) (*policyv1.ImportDocumentResponse, error) {
	return nil, notServed("ImportDocument", "`sluice policy suggest` writes a document to begin with")
}
