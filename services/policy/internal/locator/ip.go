package locator

import (
	"errors"
	"fmt"
	"net/netip"
)

// ParsePrefix parses a network in CIDR notation, for example 10.0.0.0/8. It returns an error if bits after the prefix
// are set, or for an IPv4-mapped IPv6 network.
func ParsePrefix(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, errors.New("is not a network in CIDR notation, such as 10.0.0.0/8 or fd00::/8")
	case prefix.Addr().Is4In6():
		return netip.Prefix{}, errors.New("is an IPv4 network mapped into IPv6: write it as IPv4")
	case prefix.Masked() != prefix:
		return netip.Prefix{}, fmt.Errorf("has bits after its prefix: write %s, or %s/%d for the single address", prefix.Masked(), prefix.Addr(), prefix.Addr().BitLen())
	}
	return prefix, nil
}

// ParseIP parses an IP address. For an IPv4-mapped IPv6 address, it returns the IPv4 address. It returns an error for
// an address with a zone, and for an IPv4 address that is not written as four decimal numbers.
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
