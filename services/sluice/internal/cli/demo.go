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
	readTimeout   = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 32 << 10
	drainTimeout  = 5 * time.Second
)

func newDemo(log *slog.Logger) (*demo.Server, error) {
	return demo.New(demo.DefaultConfig(), demo.Deps{Log: log.With("server", "demo")})
}

func (t *tool) demoServer() *cobra.Command {
	var listen string
	var stdio, probe bool
	c := &cobra.Command{
		Use:   "demo-server",
		Short: "Run the demo MCP server alone, as a server for a mesh",
		Args:  args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			log := app.NewLog(t.errOut, "demo", false, slog.LevelInfo)
			server, err := newDemo(log)
			if err != nil {
				return err
			}
			if probe {
				return probeDemo(c.Context(), listen)
			}
			if stdio {
				return server.ServeStdio(c.Context(), os.Stdin, os.Stdout)
			}
			lis, err := new(net.ListenConfig).Listen(c.Context(), "tcp", listen)
			if err != nil {
				return fmt.Errorf("listen for the demo server (set another address with --listen): %w", err)
			}
			log.InfoContext(c.Context(), "serving the demo server", "url", "http://"+lis.Addr().String()+"/mcp")
			return serveHTTP(c.Context(), lis, server.Handler())
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:8000", "the address to serve Streamable HTTP on")
	c.Flags().BoolVar(&probe, "probe", false, "only check that a demo server answers at --listen; exits with 1 if not")
	c.Flags().BoolVar(&stdio, "stdio", false, "serve on standard input and output instead")
	return c
}

// probeDemo returns nil if a demo server at this address responds to HTTP.
func probeDemo(ctx context.Context, listen string) error {
	ctx, cancel := context.WithTimeout(ctx, headerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+listen+"/mcp", nil)
	if err != nil {
		return fmt.Errorf("probe %s: %w", listen, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // only the status matters
	// The server refuses this request because it belongs to no session. The response still shows that the server is
	// running.
	if resp.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("probe %s: the server answered %s", listen, resp.Status)
	}
	return nil
}

func serveHTTP(ctx context.Context, lis net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader}
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
		if server.Shutdown(ctx) != nil { // clients still have open streams, which Close ends
			return server.Close()
		}
		return nil
	})
	return group.Wait()
}
