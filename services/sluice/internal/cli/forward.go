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

// maxForwarded is how many connections are forwarded at once for each address that
// is listened on; more are closed.
const maxForwarded = 256

// forward passes connections on: what publishes the ports of containers whose
// networks have no way to the machine that they run on.
func (t *tool) forward() *cobra.Command {
	return &cobra.Command{
		Use:   "forward LISTEN=TARGET...",
		Short: "Forward TCP connections, for ports of containers without another network",
		Long: `Listen on each LISTEN, and forward every connection to its TARGET, as in

  forward :9001=policy:9001 :9002=ratelimit:9002

Bytes are forwarded unchanged; TLS is not terminated here.`,
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
				if !ok || !namesPort(listen) || !namesPort(target) {
					return usageError{fmt.Errorf("%q is not LISTEN=TARGET, two addresses such as :9001=policy:9001", pair)}
				}
				proxy.AddRoute(listen, forwardTo(c.Context(), log, target))
			}
			if err := proxy.Start(); err != nil {
				return fmt.Errorf("forward: %w", err)
			}
			<-c.Context().Done()
			return proxy.Close()
		},
	}
}

// namesPort reports whether an address is HOST:PORT.
func namesPort(addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	return err == nil && port != ""
}

// bounded is a target that takes so many connections at once.
type bounded struct {
	tcpproxy.Target
	room chan struct{}
}

// HandleConn implements [tcpproxy.Target].
func (b bounded) HandleConn(conn net.Conn) {
	select {
	case b.room <- struct{}{}:
		defer func() { <-b.room }()
		b.Target.HandleConn(conn)
	default:
		_ = conn.Close() // nothing was promised to it
	}
}

// forwardTo is a target of connections. One that can't be reached ends its
// connection, and says so in the log.
func forwardTo(ctx context.Context, log *slog.Logger, target string) tcpproxy.Target {
	to := tcpproxy.To(target)
	to.OnDialError = func(from net.Conn, err error) {
		log.WarnContext(ctx, "the target can't be reached", "target", target, "error", err)
		_ = from.Close() // nothing was promised to it
	}
	return bounded{to, make(chan struct{}, maxForwarded)}
}
