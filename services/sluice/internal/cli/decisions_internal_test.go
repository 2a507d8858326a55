package cli

import (
	"context"
	"io"
	"slices"
	"strconv"
	"testing"

	"google.golang.org/grpc"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

// fakeGateway is a gateway with stored records. It returns at most 700 records in one response.
type fakeGateway struct {
	gatewayv1.GatewayServiceClient

	kept  int
	asked []int32
}

func (p *fakeGateway) ListDecisions(_ context.Context, req *gatewayv1.ListDecisionsRequest, _ ...grpc.CallOption) (*gatewayv1.ListDecisionsResponse, error) {
	p.asked = append(p.asked, req.GetPageSize())
	from := p.kept
	if req.GetPageToken() != "" {
		from, _ = strconv.Atoi(req.GetPageToken())
	}
	resp := new(gatewayv1.ListDecisionsResponse)
	for n := range min(int(req.GetPageSize()), 700, from) {
		resp.Records = append(resp.Records, &gatewayv1.Record{Sequence: int64(from - n)})
	}
	if left := from - len(resp.GetRecords()); left > 0 {
		resp.NextPageToken = strconv.Itoa(left)
	}
	return resp, nil
}

// newestDecisions requests several pages and returns the requested number of records in order.
func TestNewestDecisions_ReadsSeveralPages(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		n     int32
		kept  int
		asked []int32
		first int64
	}{
		"one page":             {100, 5000, []int32{100}, 4901},
		"pages that are cut":   {2000, 5000, []int32{1000, 1000, 600}, 3001},
		"all that there are":   {10000, 1500, []int32{1000, 1000, 1000}, 1},
		"as many as there are": {700, 700, []int32{700}, 1},
	} {
		p := &fakeGateway{kept: tt.kept}
		got, err := (&tool{errOut: io.Discard}).newestDecisions(t.Context(), p, nil, tt.n)
		if err != nil || len(got) != min(int(tt.n), tt.kept) || !slices.Equal(p.asked, tt.asked) {
			t.Fatalf("%s: %d records with the page sizes %v, %v", name, len(got), p.asked, err)
		}
		for i, r := range got {
			if want := tt.first + int64(i); r.GetSequence() != want {
				t.Fatalf("%s: record %d is %d, want %d", name, i, r.GetSequence(), want)
			}
		}
	}
}
