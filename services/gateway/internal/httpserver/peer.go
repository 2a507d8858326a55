package httpserver

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// maxHops is how many proxies a request may have passed.
const maxHops = 16

// peer returns the address that a request came from, without its port. Only trusted proxies may forward an address: the
// client is the last address, going back from the connection, that is not a trusted proxy's. If the proxies forward no
// address, or two that differ, it is the proxy's own.
func (s *Server) peer(r *http.Request) string {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	from := at.Addr().Unmap().WithZone("")
	if !s.trusted(from) {
		return from.String()
	}
	lists := [][]string{forwardedFor(r.Header), forwarded(r.Header)}
	lists = slices.DeleteFunc(lists, func(l []string) bool { return len(l) == 0 })
	if len(lists) == 0 {
		return from.String()
	}
	who := s.back(from, lists[0])
	if len(lists) > 1 && who != s.back(from, lists[1]) {
		return from.String() // the client may have written one of them
	}
	return who.String()
}

// trusted reports whether the address is one of a trusted proxy.
func (s *Server) trusted(addr netip.Addr) bool {
	return slices.ContainsFunc(s.cfg.Proxies, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// back follows a request back from the proxy that sent it here, through hops from the last to the first.
func (s *Server) back(from netip.Addr, hops []string) netip.Addr {
	for i, hop := range slices.Backward(hops) {
		addr, ok := nodeAddr(hop)
		if !ok {
			return from
		}
		if from = addr; !s.trusted(addr) || len(hops)-i == maxHops {
			return addr
		}
	}
	return from
}

// forwardedFor returns the addresses of X-Forwarded-For.
func forwardedFor(h http.Header) (hops []string) {
	for _, line := range h["X-Forwarded-For"] {
		hops = append(hops, strings.Split(line, ",")...)
	}
	return hops
}

// forwarded returns the `for` of each element of Forwarded (RFC 7239, section 4); empty for an element without it.
func forwarded(h http.Header) (hops []string) {
	for _, line := range h["Forwarded"] {
		for element := range strings.SplitSeq(line, ",") {
			hop := ""
			for pair := range strings.SplitSeq(element, ";") {
				if name, value, ok := strings.Cut(strings.TrimSpace(pair), "="); ok && strings.EqualFold(name, "for") {
					hop = strings.Trim(value, `"`)
				}
			}
			hops = append(hops, hop)
		}
	}
	return hops
}

// nodeAddr reads an address as proxies write it: with or without a port, IPv6 with or without brackets.
func nodeAddr(text string) (netip.Addr, bool) {
	text = strings.TrimSpace(text)
	if at, err := netip.ParseAddrPort(text); err == nil {
		return at.Addr().Unmap().WithZone(""), true
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return addr.Unmap().WithZone(""), err == nil
}
