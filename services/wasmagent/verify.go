package wasmagent

import (
	"context"
	"fmt"
	"strconv"
	"time"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/events"
)

// eventPollInterval is how often ListEvents checks for events that another process has stored.
const eventPollInterval = time.Second

// VerifyAgent implements wasmagentv1.AgentServiceServer.
func (s *Service) VerifyAgent(ctx context.Context, req *wasmagentv1.VerifyAgentRequest) (*wasmagentv1.VerifyAgentResponse, error) {
	a, err := s.findAgent(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	resp, err := a.Verify(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	return resp, nil
}

// ListEvents implements wasmagentv1.AgentServiceServer.
func (s *Service) ListEvents(ctx context.Context, req *wasmagentv1.ListEventsRequest) (*wasmagentv1.ListEventsResponse, error) {
	after := int64(0)
	if token := req.GetPageToken(); token != "" {
		var err error
		if after, err = strconv.ParseInt(token, 10, 64); err != nil || after < 0 {
			return nil, toStatus(fmt.Errorf("%.64q %w", token, errPageToken))
		}
	}
	size := int(req.GetPageSize())
	if size == 0 {
		size = pageSize
	}
	for end := time.Now().Add(req.GetWait().AsDuration()); ; {
		a, err := s.findAgent(ctx, req.GetAgentId())
		if err != nil {
			return nil, err
		}
		stored := a.EventsStored()
		all, more, err := a.Events(ctx, after, size, maxResponseBytes)
		if err != nil {
			return nil, toStatus(err)
		}
		if remaining := time.Until(end); len(all) == 0 && remaining > 0 && ctx.Err() == nil {
			select {
			case <-stored:
			case <-time.After(min(remaining, eventPollInterval)):
			case <-ctx.Done():
			}
			continue
		}
		resp := &wasmagentv1.ListEventsResponse{More: more}
		for _, e := range all {
			resp.Events = append(resp.Events, events.Proto(e))
		}
		if fitting := prefixWithin(resp.GetEvents(), maxResponseBytes); len(fitting) < len(resp.GetEvents()) {
			resp.Events, resp.More = fitting, true
		}
		after += int64(len(resp.GetEvents()))
		resp.NextPageToken = strconv.FormatInt(after, 10)
		return resp, nil
	}
}
