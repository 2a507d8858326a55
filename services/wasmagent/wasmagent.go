// Package wasmagent serves sluice.wasmagent.v1. Of the contract this version has
// the door alone: its callers are enforced, its health is answered, and every
// method answers UNIMPLEMENTED.
package wasmagent

import (
	"google.golang.org/grpc"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
)

// Service implements wasmagentv1.AgentServiceServer and, beside it,
// wasmagentv1.GalleryServiceServer.
type Service struct {
	wasmagentv1.UnimplementedAgentServiceServer
}

// gallery implements wasmagentv1.GalleryServiceServer.
type gallery struct {
	wasmagentv1.UnimplementedGalleryServiceServer
}

// New returns a Service.
func New() *Service { return &Service{} }

// Register implements rpc.Service.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	wasmagentv1.RegisterAgentServiceServer(r, s)
	wasmagentv1.RegisterGalleryServiceServer(r, gallery{})
}
