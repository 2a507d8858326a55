package bench

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// siteThv and siteVMCP are the names of the sites that run other gateways. Both gateways are part of ToolHive. thv
// proxy is the gateway for one server, and vmcp is the gateway for many servers.
const (
	siteThv  = "thv"
	siteVMCP = "vmcp"
)

// peerTool is the name under which the gateway for many servers offers the echo server's tool.
const peerTool = serverName + "_" + toolAllowed

var peers = []string{siteThv, siteVMCP}

// vmcpFile is the configuration of vmcp. The echo server is its only server, and clients need no authentication.
const vmcpFile = `name: bench
groupRef: bench
incomingAuth: {type: anonymous}
outgoingAuth: {source: inline, default: {type: unauthenticated}}
backends: [{name: %s, url: "http://%s/mcp", transport: streamable-http}]
aggregation: {conflictResolution: prefix, conflictResolutionConfig: {prefixFormat: "{workload}_"}}
`

func (s *sites) startThv(ctx context.Context, to *site) error {
	return s.startPeer(ctx, to, siteThv, func(port string) []string {
		return []string{"proxy", serverName, "--target-uri", "http://" + s.echo.at.addr, "--port", port}
	})
}

func (s *sites) startVMCP(ctx context.Context, to *site) error {
	config := filepath.Join(to.dir, "vmcp.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, vmcpFile, serverName, s.echo.at.addr), 0o600); err != nil {
		return err
	}
	return s.startPeer(ctx, to, siteVMCP, func(port string) []string {
		return []string{"serve", "--config", config, "--port", port}
	})
}

// startPeer starts another gateway. It sets environment variables so that the gateway writes its files to the site's
// directory and uses no containers.
func (s *sites) startPeer(ctx context.Context, to *site, name string, args func(port string) []string) error {
	addrs, err := freeAddrs(ctx, 1)
	if err != nil {
		return err
	}
	at, err := net.ResolveTCPAddr("tcp", addrs[0])
	if err != nil {
		return err
	}
	to.at = endpoint{addr: addrs[0], path: "/mcp"}
	to.env = append(os.Environ(), "HOME="+to.dir, "XDG_CONFIG_HOME="+to.dir, "TOOLHIVE_RUNTIME=kubernetes")
	p, err := s.start(to, name, filepath.Join(s.cfg.Peers, name), args(strconv.Itoa(at.Port))...)
	if err != nil {
		return err
	}
	return p.ready(ctx, "http://"+addrs[0]+"/health")
}
