package bench

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
)

// maxIdle is how many idle connections the floor keeps. The default of two makes
// most calls under load open a new one.
const maxIdle = 1024

// NewProxy returns the floor: Go's own reverse proxy in front of target, with a
// transport that keeps its connections.
func NewProxy(target string) (http.Handler, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("read the target: %w", err)
	}
	return &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(u) },
		Transport: &http.Transport{MaxIdleConns: maxIdle, MaxIdleConnsPerHost: maxIdle, DisableCompression: true},
	}, nil
}
