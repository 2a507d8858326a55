package bench

import (
	"testing"
	"time"
)

// BenchmarkCall measures a call while the mesh, the echo server and the callers run in this process. It is meant for
// profiles and for comparing allocations. The difference from the cell `direct` is the cost of the mesh.
//
//	go test ./bench -run '^$' -bench Call -cpuprofile cpu.prof
func BenchmarkCall(b *testing.B) {
	const callers = 32
	s := newTestSites(b)
	path, err := s.writeMesh(s.dir, meshFile{MCP: "127.0.0.1:0", GRPC: "127.0.0.1:0", Data: "data"})
	if err != nil {
		b.Fatal(err)
	}
	at := map[string]endpoint{siteEcho: s.echo.at, siteUp: s.meshAt(startMesh(b, path))}
	for _, cell := range Cells() {
		to, here := at[cell.site]
		if !here {
			continue
		}
		r := &runner{sites: s, callers: make(map[string][]*caller), sharedSessions: make(map[string]chan *callerSession)}
		b.Run(cell.Name, func(b *testing.B) {
			made, err := r.callersOf(b.Context(), cell, to, callers)
			if err != nil {
				b.Fatal(err)
			}
			free := make(chan *caller, callers)
			for _, c := range made {
				if err := c.connect(b.Context(), time.Now().Add(time.Hour)); err != nil {
					b.Fatal(err)
				}
				defer c.close()
				free <- c
			}
			b.ReportAllocs()
			b.SetParallelism(callers / 2)
			b.RunParallel(func(pb *testing.PB) {
				c := <-free
				defer func() { free <- c }()
				for pb.Next() {
					if err := c.call(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
