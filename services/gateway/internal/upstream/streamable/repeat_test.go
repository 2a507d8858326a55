package streamable_test

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// The server closes the connection after a POST. The POST is not sent again, because the server may have read it.
func TestRequest_IsNotRepeatedOnAStaleConnection(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var server sync.WaitGroup
	calls := new(callCounts)
	server.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			server.Go(func() { serveOnce(conn, calls) })
		}
	})
	up := newHTTP(t, "http://"+lis.Addr().String())
	conn, _, err := up.Open(within(t, soon), principal.Key{}, message("initialize", "0"))
	if err != nil {
		t.Fatal(err)
	}
	maySend := 0
	for i := range 20 {
		_, err := conn.Request(within(t, soon), padded(message("tools/call", strconv.Itoa(i+1)), i%2*sizes["large"]), nil)
		if !errors.Is(err, upstream.ErrNeverSent) {
			maySend++
		}
	}
	if err := errors.Join(up.Close(), lis.Close()); err != nil {
		t.Fatal(err)
	}
	server.Wait() // the server may read a call after the client has got its error
	for id, n := range calls.read {
		if n > 1 {
			t.Errorf("the call %s was sent %d times", id, n)
		}
	}
	if n := len(calls.read); n == 0 || n > maySend {
		t.Errorf("the server read %d calls, and at most %d were sent", n, maySend)
	}
}

// callCounts contains the number of times that the server has read each call, by the id of the call.
type callCounts struct {
	mu   sync.Mutex
	read map[string]int
}

var callID = regexp.MustCompile(`"id":"?(\d+)"?,"method":"tools/call"|"method":"tools/call","id":"?(\d+)`)

func (c *callCounts) add(request []byte) bool {
	found := callID.FindSubmatch(request)
	if found == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read == nil {
		c.read = make(map[string]int)
	}
	c.read[string(found[1])+string(found[2])]++
	return true
}

func serveOnce(conn net.Conn, calls *callCounts) {
	defer conn.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buf)
		if err != nil || calls.add(buf[:n]) {
			return
		}
		body := `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
}
