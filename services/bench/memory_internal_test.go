package bench

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// memoryInUse returns the number of bytes of heap and stacks that this process uses after a garbage collection.
func memoryInUse() int64 {
	runtime.GC()
	runtime.GC() // finalizers run after the first collection, so their memory is freed by the second
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	return int64(now.HeapAlloc + now.StackInuse)
}

// BenchmarkIdleSession measures the memory of an idle session. This command opens 4,000 sessions, two for each
// principal:
//
//	go test ./bench -run '^$' -bench IdleSession -benchtime 4000x
func BenchmarkIdleSession(b *testing.B) {
	s := newTestSites(b)
	path, err := s.writeMesh(s.dir, meshFile{MCP: "127.0.0.1:0", GRPC: "127.0.0.1:0", Data: "data"})
	if err != nil {
		b.Fatal(err)
	}
	at := s.meshAt(startMesh(b, path))
	for _, token := range s.tokens { // the first session of a principal uses more memory, so it is not counted
		if _, err := openSession(b.Context(), at, token); err != nil {
			b.Fatal(err)
		}
	}
	before, n := memoryInUse(), 0
	for b.Loop() {
		if _, err := openSession(b.Context(), at, s.tokens[n%len(s.tokens)]); err != nil {
			b.Fatal(err)
		}
		n++
	}
	b.ReportMetric(float64(memoryInUse()-before)/float64(b.N), "B/session")
}

// BenchmarkCallInFlight measures the mesh's memory for a call to which the server does not respond. It subtracts the
// memory of the client and the server, which run in the same process.
//
//	go test ./bench -run '^$' -bench CallInFlight -benchtime 1x
func BenchmarkCallInFlight(b *testing.B) {
	const calls = 200
	s := newTestSites(b)
	echo, release := NewEcho(), make(chan struct{})
	var held atomic.Int64
	holding := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, []byte("tools/call")) {
			held.Add(1)
			<-release
			held.Add(-1)
		}
		echo.ServeHTTP(w, r)
	}))
	defer holding.Close()
	u, err := url.Parse(holding.URL)
	if err != nil {
		b.Fatal(err)
	}
	s.echo = &site{at: endpoint{addr: u.Host, path: "/mcp"}}
	path, err := s.writeMesh(s.dir, meshFile{MCP: "127.0.0.1:0", GRPC: "127.0.0.1:0", Data: "data"})
	if err != nil {
		b.Fatal(err)
	}
	at := s.meshAt(startMesh(b, path))
	inFlight := func(to endpoint) float64 {
		var callers []*caller
		for n := range calls {
			sessions, err := openSessions(b.Context(), to, s.tokens[n:n+1], toolAllowed)
			if err != nil {
				b.Fatal(err)
			}
			c := newCaller(to, sessions, echoText)
			if err := c.connect(b.Context(), time.Now().Add(time.Hour)); err != nil {
				b.Fatal(err)
			}
			defer c.close()
			callers = append(callers, c)
		}
		before := memoryInUse()
		var calling sync.WaitGroup
		for _, c := range callers {
			calling.Go(func() {
				if err := c.call(); err != nil {
					b.Error(err)
				}
			})
		}
		for held.Load() < calls {
			<-time.After(10 * time.Millisecond)
		}
		each := float64(memoryInUse()-before) / calls
		for range calls {
			release <- struct{}{}
		}
		calling.Wait()
		return each
	}
	direct := inFlight(s.echo.at)
	b.ReportMetric(inFlight(at)-direct, "B/call")
	b.ReportMetric(direct, "direct-B/call")
}
