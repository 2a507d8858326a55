package stack

import (
	"context"
	"slices"
	"testing"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

// ListRecords returns all records of a gateway, oldest first.
func ListRecords(ctx context.Context, t *testing.T, gateway gatewayv1.GatewayServiceClient) (out []*gatewayv1.Record) {
	t.Helper()
	req := &gatewayv1.ListDecisionsRequest{PageSize: 1000}
	for more := true; more; more = req.GetPageToken() != "" {
		resp, err := gateway.ListDecisions(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		out, req.PageToken = append(out, resp.GetRecords()...), resp.GetNextPageToken()
	}
	slices.Reverse(out)
	return out
}
