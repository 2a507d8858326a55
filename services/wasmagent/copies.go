package wasmagent

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
)

// SnapshotAgent implements wasmagentv1.AgentServiceServer.
func (s *Service) SnapshotAgent(ctx context.Context, req *wasmagentv1.SnapshotAgentRequest) (*wasmagentv1.SnapshotAgentResponse, error) {
	a, err := s.findAgent(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	if err := s.ensureSpace(ctx, principal.Person(a.Creator)); err != nil {
		return nil, toStatus(err)
	}
	snapshot, err := a.Snapshot(callerOf(ctx), req.GetLabel())
	if err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.SnapshotAgentResponse{Snapshot: snapshot}, nil
}

// ForkAgent implements wasmagentv1.AgentServiceServer. The caller becomes the creator of the fork. The fork gets the
// manifest of the original agent, restricted by copiedManifest.
func (s *Service) ForkAgent(ctx context.Context, req *wasmagentv1.ForkAgentRequest) (*wasmagentv1.ForkAgentResponse, error) {
	a, err := s.findAgent(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	caller := actingPrincipal(ctx)
	manifest, limits, err := s.newManifest(ctx, caller, copiedManifest(caller, a.Creator.GetSubject(), a.Manifest), "")
	if err != nil {
		return nil, toStatus(err)
	}
	if err := s.ensureSpace(ctx, principal.Person(caller)); err != nil {
		return nil, toStatus(err)
	}
	second, err := a.Fork(callerOf(ctx), newAgentID(), agent.Spec{Creator: proto.CloneOf(caller), Manifest: manifest, CreatedAt: time.Now()}, req.GetSnapshotId(), limits)
	if err != nil {
		return nil, toStatus(err)
	}
	s.agents.add(second)
	return &wasmagentv1.ForkAgentResponse{Agent: second.Proto()}, nil
}

// copiedManifest returns the manifest of a copy. If another agent has created the original, the service checks the
// original's calls against that agent's rights as well. It can't check the copy's calls against these rights if a
// different principal creates the copy. Such a copy therefore gets only the right to use files.
func copiedManifest(caller *identityv1.Principal, creator string, m *wasmagentv1.Manifest) *wasmagentv1.Manifest {
	if !strings.HasPrefix(creator, agent.Subject(caller.GetTenant(), "")) || creator == caller.GetSubject() {
		return m
	}
	return &wasmagentv1.Manifest{Files: m.GetFiles(), StopOnDenial: m.GetStopOnDenial()}
}
