// Package loopback recognizes loopback addresses and connects only to them. A token is sent without TLS only to a
// loopback address.
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

const dialTimeout = 5 * time.Second

// Host reports whether a host is `localhost` or a loopback address in its usual form. It returns false for names that
// only contain one of these, and for addresses with decimal, octal or hexadecimal numbers.
func Host(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Zone() == "" && ip.Unmap().IsLoopback()
}

// Address reports whether [Host] accepts the host of HOST:PORT.
func Address(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && Host(host)
}

// Dial connects to an address if it resolves to a loopback address. It is safe for concurrent use.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
		if at, err := netip.ParseAddrPort(resolved); err != nil || !at.Addr().Unmap().IsLoopback() {
			return fmt.Errorf("%s is %s, which is not a loopback address: a token is not sent there without TLS", address, resolved)
		}
		return nil
	}}
	return d.DialContext(ctx, network, address)
}
