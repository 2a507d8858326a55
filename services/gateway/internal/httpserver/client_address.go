package httpserver

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// maxHops is the maximum number of proxies between a client and the gateway.
const maxHops = 16

// clientAddr returns the address from which a request was sent, without the port. Only trusted proxies may forward an
// address. clientAddr starts with the address of the connection and follows the forwarded addresses from the last to
// the first. It returns the first address that does not belong to a trusted proxy. If the proxies forward no address,
// or forward two different addresses, clientAddr returns the proxy's own address.
func (s *Server) clientAddr(r *http.Request) string {
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
	client := s.lastUntrusted(from, lists[0])
	if len(lists) > 1 && client != s.lastUntrusted(from, lists[1]) {
		return from.String() // the client may have set one of the two headers
	}
	return client.String()
}

func (s *Server) trusted(addr netip.Addr) bool {
	return slices.ContainsFunc(s.cfg.Proxies, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// lastUntrusted returns the address of the client that has sent a request. It starts with from, which is the address
// from which the request was received. Then it follows the forwarded addresses from the last to the first while they
// belong to trusted proxies.
func (s *Server) lastUntrusted(from netip.Addr, hops []string) netip.Addr {
	for i, hop := range slices.Backward(hops) {
		addr, ok := parseNode(hop)
		if !ok {
			return from
		}
		if from = addr; !s.trusted(addr) || len(hops)-i == maxHops {
			return addr
		}
	}
	return from
}

func forwardedFor(h http.Header) (hops []string) {
	for _, line := range h["X-Forwarded-For"] {
		hops = append(hops, strings.Split(line, ",")...)
	}
	return hops
}

// forwarded returns the parameter "for" of each element in the Forwarded header (RFC 7239, section 4). The result
// contains "" for an element without that parameter.
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

// parseNode parses an address as proxies write it, with or without a port. An IPv6 address may be in brackets.
func parseNode(text string) (netip.Addr, bool) {
	text = strings.TrimSpace(text)
	if at, err := netip.ParseAddrPort(text); err == nil {
		return at.Addr().Unmap().WithZone(""), true
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return addr.Unmap().WithZone(""), err == nil
}
