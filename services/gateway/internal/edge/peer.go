package edge

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// maxHops is how many proxies a request is followed back through.
const maxHops = 16

// peer is the address that a request came from, without its port. What proxies forward
// is believed of those that are trusted, and of nobody else: back from the connection,
// the first address that is no trusted proxy's is who asks. Where that is not told, or
// told in two ways, it is the proxy.
func (e *Edge) peer(r *http.Request) string {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	from := at.Addr().Unmap().WithZone("")
	if !e.trusted(from) {
		return from.String()
	}
	lists := [][]string{forwardedFor(r.Header), forwarded(r.Header)}
	lists = slices.DeleteFunc(lists, func(l []string) bool { return len(l) == 0 })
	if len(lists) == 0 {
		return from.String()
	}
	who := e.back(from, lists[0])
	if len(lists) > 1 && who != e.back(from, lists[1]) {
		return from.String() // one of them is the client's own
	}
	return who.String()
}

// trusted reports whether an address is a trusted proxy's.
func (e *Edge) trusted(addr netip.Addr) bool {
	return slices.ContainsFunc(e.cfg.Proxies, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// back follows a request from the proxy that sent it here through those before it, the
// last one last.
func (e *Edge) back(from netip.Addr, hops []string) netip.Addr {
	for i, hop := range slices.Backward(hops) {
		addr, ok := nodeAddr(hop)
		if !ok {
			return from
		}
		if from = addr; !e.trusted(addr) || len(hops)-i == maxHops {
			return addr
		}
	}
	return from
}

// forwardedFor is what X-Forwarded-For lists.
func forwardedFor(h http.Header) (hops []string) {
	for _, line := range h["X-Forwarded-For"] {
		hops = append(hops, strings.Split(line, ",")...)
	}
	return hops
}

// forwarded is what the `for` of each element of Forwarded is (RFC 7239, section 4);
// empty where an element has none.
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

// nodeAddr reads an address as proxies write it: with a port or without, one of IPv6 in
// brackets or without.
func nodeAddr(text string) (netip.Addr, bool) {
	text = strings.TrimSpace(text)
	if at, err := netip.ParseAddrPort(text); err == nil {
		return at.Addr().Unmap().WithZone(""), true
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return addr.Unmap().WithZone(""), err == nil
}
