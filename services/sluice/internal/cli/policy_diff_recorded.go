package cli

import (
	"context"
	"fmt"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// readRecordedCalls reads the calls in the journal. It combines all calls to the same tool by the same caller.
func (t *tool) readRecordedCalls(ctx context.Context, client gatewayv1.GatewayServiceClient, filter *gatewayv1.DecisionFilter) ([]*policyv1.RecordedCall, error) {
	req := &gatewayv1.ListDecisionsRequest{Filter: filter, PageSize: maxPage}
	var out []*policyv1.RecordedCall
	known, left := make(map[string]*policyv1.RecordedCall), 0
	for {
		resp, err := listDecisionsPage(ctx, client, req)
		if err != nil {
			return nil, t.explainError(err)
		}
		for _, r := range resp.GetRecords() {
			call := recordedCall(r)
			if call == nil {
				continue
			}
			key := call.GetCall().String() + call.GetSubject().String()
			switch same := known[key]; {
			case same != nil:
				same.Count++
			case len(out) == maxRecordedCalls:
				left++
			default:
				known[key], out = call, append(out, call)
			}
		}
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			break
		}
	}
	if left > 0 {
		return nil, fmt.Errorf("the journal has more than %d different calls in this time: set a shorter time with --since", maxRecordedCalls)
	}
	return out, nil
}
