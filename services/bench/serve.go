package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

const (
	headerTimeout = 10 * time.Second
	// healthPath is the path that returns status 200 while a server serves.
	healthPath = "/healthz"
)

// Serve serves a handler and the path /healthz on addr until ctx is done.
func Serve(ctx context.Context, addr string, h http.Handler) error {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.HandleFunc("GET "+healthPath, func(http.ResponseWriter, *http.Request) {})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // requests in flight are aborted
	defer stop()
	if err := server.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}
