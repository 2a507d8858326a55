package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/inetaf/tcpproxy"
	"github.com/spf13/cobra"

	"github.com/sluice-mesh/sluice/services/internal/app"
)

// maxForwarded is the maximum number of open connections for each LISTEN address. Additional connections are closed.
const maxForwarded = 256

// forward returns the command that forwards TCP connections. A compose file uses it to publish ports of containers in
// networks that can't reach the host.
func (t *tool) forward() *cobra.Command {
	return &cobra.Command{
		Use:   "forward LISTEN=TARGET...",
		Short: "Forward TCP connections, to publish ports of containers in an internal network",
		Long: `Listen on each LISTEN, and forward every connection to its TARGET, as in

  forward :9001=policy:9001 :9002=ratelimit:9002

The command forwards the bytes unchanged and does not terminate TLS.`,
		Hidden: true,
		Args:   args(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, given []string) error {
			log := app.NewLog(t.errOut, "forward", false, slog.LevelInfo)
			proxy := &tcpproxy.Proxy{ListenFunc: func(network, address string) (net.Listener, error) {
				lis, err := new(net.ListenConfig).Listen(c.Context(), network, address)
				if err != nil {
					return nil, err
				}
				log.InfoContext(c.Context(), "forwarding", "address", lis.Addr().String())
				return lis, nil
			}}
			for _, pair := range given {
				listen, target, ok := strings.Cut(pair, "=")
				if !ok || !hasPort(listen) || !hasPort(target) {
					return usageError{fmt.Errorf("%q must be LISTEN=TARGET with two addresses, such as :9001=policy:9001", pair)}
				}
				proxy.AddRoute(listen, forwardTarget(c.Context(), log, target))
			}
			if err := proxy.Start(); err != nil {
				return fmt.Errorf("forward: %w", err)
			}
			<-c.Context().Done()
			return proxy.Close()
		},
	}
}

func hasPort(addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	return err == nil && port != ""
}

type limitedTarget struct {
	tcpproxy.Target
	slots chan struct{}
}

// HandleConn implements [tcpproxy.Target]. If too many connections are open, it closes the connection.
func (b limitedTarget) HandleConn(conn net.Conn) {
	select {
	case b.slots <- struct{}{}:
		defer func() { <-b.slots }()
		b.Target.HandleConn(conn)
	default:
		_ = conn.Close()
	}
}

// forwardTarget returns the proxy target for an address. If the proxy can't connect to the address, it logs the error
// and closes the client's connection.
func forwardTarget(ctx context.Context, log *slog.Logger, target string) tcpproxy.Target {
	to := tcpproxy.To(target)
	to.OnDialError = func(from net.Conn, err error) {
		log.WarnContext(ctx, "a connection was closed because its target can't be reached", "target", target, "error", err)
		_ = from.Close()
	}
	return limitedTarget{to, make(chan struct{}, maxForwarded)}
}
