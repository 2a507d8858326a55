package httpserver

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
)

// checkSite refuses requests that a browser may have sent for another website (DNS rebinding, CSRF). Health requests
// are exempt, because probes may use any host.
func (s *Server) checkSite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/healthz", r.URL.Path == "/readyz":
		case !s.hostAccepted(r.Host):
			s.refuse(w, r, commonv1.Code_CODE_HOST_REFUSED, "")
			return
		case len(r.Header["Origin"]) > 0 && !s.originAccepted(r.Header["Origin"]): // only browsers send Origin
			s.refuse(w, r, commonv1.Code_CODE_ORIGIN_REFUSED, "")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) hostAccepted(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	return isLoopback(host) || slices.Contains(s.cfg.Hosts, host)
}

func (s *Server) originAccepted(origins []string) bool {
	if len(origins) > 1 {
		return false
	}
	u, err := url.Parse(origins[0])
	if err != nil || u.Host == "" || u.Scheme == "" {
		return false // for example "null"
	}
	return slices.Contains(s.cfg.Origins, origins[0]) || isLoopback(strings.ToLower(u.Hostname()))
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}
