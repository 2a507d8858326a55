package bench

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
)

// maxIdle is how many idle connections the floor keeps. The default of two makes
// most calls under load open a new one.
const maxIdle = 1024

// NewProxy returns the floor: the best that Go's own reverse proxy can be in front of target.
// Its transport keeps its connections, and its buffers are used again: else it makes one of
// 32 KiB for each answer, and carries a third less.
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

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	buffer, _ := b.Pool.Get().(*[]byte)
	return *buffer
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(buffer []byte) { b.Pool.Put(&buffer) }
