// Package loopback says which addresses are loopback addresses, and connects to those alone. A token that is sent without
// TLS goes to such an address or is not sent.
package loopback

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

// dialTimeout bounds a connection to this machine.
const dialTimeout = 5 * time.Second

// Host reports whether a host is `localhost` or a loopback address in its usual form. Names that contain either, and
// addresses in decimal, octal or hexadecimal form, are not.
func Host(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Zone() == "" && ip.Unmap().IsLoopback()
}

// Address reports whether the host of HOST:PORT is one that [Host] accepts.
func Address(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && Host(host)
}

// Dial connects to an address if it resolves to a loopback address, whatever its name is. It is safe for concurrent use.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
		if at, err := netip.ParseAddrPort(resolved); err != nil || !at.Addr().Unmap().IsLoopback() {
			return fmt.Errorf("%s is %s, which is not a loopback address: a token is not sent there without TLS", address, resolved)
		}
		return nil
	}}
	return d.DialContext(ctx, network, address)
}
