package bench

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
)

// maxIdle is the maximum number of idle connections of the baseline proxy. With net/http's default of two idle
// connections, the proxy would have to open a new connection for most calls under load.
const maxIdle = 1024

// NewProxy returns the baseline of the benchmark, which is Go's reverse proxy in front of the server at the given URL.
// The proxy reuses connections and buffers. If it did not reuse buffers, it would allocate 32 KiB for each response and
// forward a third fewer calls.
func NewProxy(target string) (http.Handler, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("read the target: %w", err)
	}
	return &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(u) },
		Transport: &http.Transport{MaxIdleConns: maxIdle, MaxIdleConnsPerHost: maxIdle, DisableCompression: true},
		BufferPool: &buffers{sync.Pool{New: func() any {
			buffer := make([]byte, 32<<10)
			return &buffer
		}}},
	}, nil
}

// buffers implements httputil.BufferPool.
type buffers struct{ sync.Pool }

func (b *buffers) Get() []byte {
	buffer, _ := b.Pool.Get().(*[]byte)
	return *buffer
}

func (b *buffers) Put(buffer []byte) { b.Pool.Put(&buffer) }
