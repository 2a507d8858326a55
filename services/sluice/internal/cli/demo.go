package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/sluice/internal/demo"
)

const (
	headerTimeout = 10 * time.Second
	drainTimeout  = 5 * time.Second
)

func newDemo(log *slog.Logger) (*demo.Server, error) {
	return demo.New(demo.DefaultConfig(), demo.Deps{Log: log.With("server", "demo")})
}

func (t *tool) demoServer() *cobra.Command {
	var listen string
	var stdio bool
	c := &cobra.Command{
		Use:   "demo-server",
		Short: "Serve the demo MCP server by itself, to put the mesh in front of it",
		Args:  args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			log := app.NewLog(t.errOut, "demo", false)
			server, err := newDemo(log)
			if err != nil {
				return err
			}
			if stdio {
				return server.ServeStdio(c.Context(), os.Stdin, os.Stdout)
			}
			lis, err := new(net.ListenConfig).Listen(c.Context(), "tcp", listen)
			if err != nil {
				return fmt.Errorf("listen (--listen): %w", err)
			}
			log.InfoContext(c.Context(), "serving the demo server", "url", "http://"+lis.Addr().String()+"/mcp")
			return serveHTTP(c.Context(), lis, server.Handler())
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:8000", "the address to serve Streamable HTTP on")
	c.Flags().BoolVar(&stdio, "stdio", false, "serve standard input and output instead")
	return c
}

// serveHTTP serves until ctx ends.
func serveHTTP(ctx context.Context, lis net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the demo server: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		if server.Shutdown(ctx) != nil { // streams of clients that stay are cut off
			return server.Close()
		}
		return nil
	})
	return group.Wait()
}
