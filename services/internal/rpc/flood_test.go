package rpc_test

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// Case X2. Goroutines open connections from one address as fast as possible and send nothing. They use the same
// processors as the clients. Clients with the same address that send data keep their connections. A client can lose its
// connection only if 64 other connections are opened before the client sends data.
func TestServer_SilentConnectionsDisplaceOnlySilentOnes(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, lengthProbe().register(t))
	stop := make(chan struct{})
	var flooding sync.WaitGroup
	for range 4 {
		flooding.Go(func() {
			var open []net.Conn
			for {
				select {
				case <-stop:
					for _, conn := range open {
						_ = conn.Close()
					}
					return
				default:
				}
				conn, err := net.DialTimeout("tcp", s.plain, time.Second)
				if err != nil {
					continue
				}
				if open = append(open, conn); len(open) > 200 {
					_ = open[0].Close()
					open = open[1:]
				}
			}
		})
	}
	failed := 0
	for range 100 {
		conn, err := rpc.DialPerson(s.plain, tokenText(operator), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ask(timeoutContext(t), conn, methodUnary); err != nil {
			failed++
			t.Log(err)
		}
		_ = conn.Close()
	}
	close(stop)
	flooding.Wait()
	if failed > 5 {
		t.Errorf("%d of 100 clients were driven out", failed)
	}
}
