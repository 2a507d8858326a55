package cli

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

const (
	// idLength is the length of a complete identifier.
	idLength = 36
	// maxIDPages limits the number of pages of records that are searched for ids with a given prefix.
	maxIDPages = 20
)

// getDecision returns the records of the decision with the given id. For recent decisions, a prefix of the id is
// enough.
func (t *tool) getDecision(ctx context.Context, client gatewayv1.GatewayServiceClient, given string) (*gatewayv1.GetDecisionResponse, error) {
	resp, err := client.GetDecision(ctx, &gatewayv1.GetDecisionRequest{Id: given})
	switch {
	case err == nil:
		return resp, nil
	case status.Code(err) != codes.NotFound || len(given) < minIDPrefix || len(given) >= idLength:
		return nil, t.explainError(err)
	}
	found, listErr := decisionsWithPrefix(ctx, client, strings.ToLower(given))
	switch {
	case listErr != nil:
		return nil, t.explainError(listErr)
	case len(found) == 0:
		return nil, t.explainError(err)
	case len(found) > 1:
		return nil, fmt.Errorf("%d decisions have an id that begins with %q: give more characters of the id", len(found), given)
	}
	for id := range found {
		if resp, err = client.GetDecision(ctx, &gatewayv1.GetDecisionRequest{Id: id}); err != nil {
			return nil, t.explainError(err)
		}
	}
	return resp, nil
}

// decisionsWithPrefix returns the ids of decisions that begin with the given prefix. It searches only the newest
// records.
func decisionsWithPrefix(ctx context.Context, client gatewayv1.GatewayServiceClient, prefix string) (map[string]bool, error) {
	found := make(map[string]bool)
	req := &gatewayv1.ListDecisionsRequest{PageSize: maxPage}
	for range maxIDPages {
		resp, err := client.ListDecisions(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, r := range resp.GetRecords() {
			if strings.HasPrefix(r.GetDecisionId(), prefix) {
				found[r.GetDecisionId()] = true
			}
		}
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			break
		}
	}
	return found, nil
}
