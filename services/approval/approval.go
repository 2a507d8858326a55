// Package approval serves sluice.approval.v1. Of the contract this version has
// the door alone: its callers are enforced, its health is answered, and every
// method answers UNIMPLEMENTED, so that a call which needs a person is refused.
package approval

import (
	"google.golang.org/grpc"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
)

// Service implements approvalv1.ApprovalServiceServer.
type Service struct {
	approvalv1.UnimplementedApprovalServiceServer
}

// New returns a Service.
func New() *Service { return &Service{} }

// Register implements rpc.Service.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	approvalv1.RegisterApprovalServiceServer(r, s)
}
