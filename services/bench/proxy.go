package bench

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
)

// maxIdle is how many idle connections the floor keeps open. With the default of two, most calls under load would open
// a new one.
const maxIdle = 1024

// NewProxy returns the floor: Go's own reverse proxy in front of target, at its best. Its transport reuses connections
// and buffers. Without that it would allocate 32 KiB for each answer, and carry a third less.
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
