package hostile_test

import (
	"context"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawh2"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// readNothing requests 100 pages of records with a viewer's token. Its flow-control window is zero, so the server can't
// send any of the pages.
func readNothing(ctx context.Context, m target) bool {
	request, err := proto.Marshal(&gatewayv1.ListDecisionsRequest{PageSize: 1000})
	if err != nil {
		return false
	}
	conn, err := rawh2.Dial(m.GRPC, nil, false, http2.Setting{ID: http2.SettingInitialWindowSize})
	if err != nil {
		return false
	}
	defer conn.Close()
	head := rawh2.HeaderBlock(gatewayv1.GatewayService_ListDecisions_FullMethodName, hpack.HeaderField{Name: "authorization", Value: "Bearer " + stack.ViewerToken})
	for range 100 {
		id, err := conn.Open(head, false)
		if err != nil {
			return false
		}
		if err := conn.WriteData(id, true, append([]byte{0, 0, 0, 0, byte(len(request))}, request...)); err != nil {
			return false
		}
	}
	select {
	case <-ctx.Done():
	case <-conn.Ended(): // the server closed the connection
	}
	return true
}
