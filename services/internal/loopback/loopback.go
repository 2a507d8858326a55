// Package loopback recognizes loopback addresses and connects only to them. Tokens are sent without TLS only to
// loopback addresses.
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

// Host reports whether a host is `localhost` or a loopback address in its usual form. It returns false for longer names
// that contain one of these, and for addresses in other notations, such as 2130706433 or 0x7f.1.
func Host(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Zone() == "" && ip.Unmap().IsLoopback()
}

// Address reports whether address is HOST:PORT and [Host] accepts HOST.
func Address(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && Host(host)
}

// Dial connects to an address. It returns an error if the address does not resolve to a loopback address. It is safe
// for concurrent use.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
		if at, err := netip.ParseAddrPort(resolved); err != nil || !at.Addr().Unmap().IsLoopback() {
			return fmt.Errorf("%s is %s, which is not a loopback address: a token is not sent there without TLS", address, resolved)
		}
		return nil
	}}
	return d.DialContext(ctx, network, address)
}
