package locator

import (
	"errors"
	"fmt"
	"net/netip"
)

// ParsePrefix reads a network in CIDR notation, such as 10.0.0.0/8. A network with bits after the prefix, or of IPv4
// mapped into IPv6, is an error.
func ParsePrefix(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, errors.New("is not a network in CIDR notation, such as 10.0.0.0/8 or fd00::/8")
	case prefix.Addr().Is4In6():
		return netip.Prefix{}, errors.New("is an IPv4 network mapped into IPv6: write it as IPv4")
	case prefix.Masked() != prefix:
		return netip.Prefix{}, fmt.Errorf("has bits behind its prefix: write %s, or %s/%d for the one address", prefix.Masked(), prefix.Addr(), prefix.Addr().BitLen())
	}
	return prefix, nil
}

// ParseIP reads an IP address. It returns an IPv4 address for one that is mapped into IPv6. An address with a zone is
// an error, and so is an IPv4 address that is not four decimal parts.
func ParseIP(text string) (netip.Addr, error) {
	address, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return netip.Addr{}, errors.New("is not an IP address in its usual form")
	case address.Zone() != "":
		return netip.Addr{}, errors.New("has a zone")
	}
	return address.Unmap(), nil
}
