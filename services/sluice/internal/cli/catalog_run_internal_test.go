package cli

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The mesh refuses two requests, because the server's package is being installed, and answers the third request.
func TestRequest_RepeatsWhileTheServerIsStarting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		raw, err := requestOf(t, 2).request(t.Context(), "tools/list", struct{}{})
		if err != nil || string(raw) != `{"tools":[]}` {
			t.Errorf("the request returns %s, %v", raw, err)
		}
		if took := time.Since(begin); took != 10*time.Second {
			t.Errorf("the requests took %v, want twice the time that the mesh names", took)
		}
	})
}

func TestRequest_ReturnsTheRefusalAtItsDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
		defer cancel()
		if _, err := requestOf(t, 100).request(ctx, "tools/list", struct{}{}); err == nil || err.Error() != "the server is still starting" {
			t.Errorf("the request returns %v", err)
		}
	})
}

// requestOf returns a connection to a mesh that refuses the first requests. The parameter refused is the number of
// refused requests.
func requestOf(t *testing.T, refused int) *startedServer {
	t.Helper()
	near, far := mcp.NewInMemoryTransports()
	client, err := near.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	server, err := far.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	go func() {
		for {
			message, err := server.Read(t.Context())
			request, ok := message.(*jsonrpc.Request)
			if err != nil || !ok {
				return
			}
			answer := &jsonrpc.Response{ID: request.ID, Result: []byte(`{"tools":[]}`)}
			if refused--; refused >= 0 {
				answer.Result, answer.Error = nil, &jsonrpc.Error{Code: -31402, Message: "the server is still starting", Data: []byte(`{"code":"upstream_unavailable","retryAfterMs":5000}`)}
			}
			if server.Write(t.Context(), answer) != nil {
				return
			}
		}
	}()
	return &startedServer{conn: client}
}
