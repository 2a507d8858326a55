package gateway

import (
	"context"
	"errors"
	"fmt"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/arguments"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// errNotRecorded means that no copy of the arguments of a call was stored.
var errNotRecorded = errors.New("no arguments were recorded: the call had none, or was refused, " +
	"or neither its rule nor its server has `record: {arguments: redacted}`")

// GetRecordedArguments implements gatewayv1.GatewayServiceServer.
func (s *Service) GetRecordedArguments(ctx context.Context, req *gatewayv1.GetRecordedArgumentsRequest) (*gatewayv1.GetRecordedArgumentsResponse, error) {
	done, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	records, err := s.journal.Find(ctx, req.GetId())
	if err != nil {
		return nil, fmt.Errorf("find decision %s: %w", req.GetId(), err)
	}
	visible, isKnown := filter(ctx, nil), false
	for i := range records {
		if !visible(&records[i]) {
			continue
		}
		isKnown = true
		if recorded := records[i].Recorded; recorded != (journal.Recorded{}) {
			return s.recordedArguments(ctx, req.GetId(), recorded)
		}
	}
	if !isKnown {
		return nil, toStatus(errNoDecision)
	}
	return nil, toStatus(errNotRecorded)
}

func (s *Service) recordedArguments(ctx context.Context, id string, recorded journal.Recorded) (*gatewayv1.GetRecordedArgumentsResponse, error) {
	raw, err := s.arguments.Get(id, arguments.Copy{Digest: recorded.Digest, Place: recorded.Place})
	if err != nil {
		return nil, toStatus(err)
	}
	reader := authn.CallerOf(ctx).Person
	s.deps.Log.InfoContext(ctx, "recorded arguments were read", "decision_id", id, "tenant", reader.GetTenant(), "subject", reader.GetSubject(), "token", reader.GetTokenId())
	return &gatewayv1.GetRecordedArgumentsResponse{ArgumentsJson: string(raw), Redacted: recorded.IsRedacted}, nil
}
