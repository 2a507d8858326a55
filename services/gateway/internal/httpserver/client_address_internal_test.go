package httpserver

import (
	"net/http"
	"net/netip"
	"testing"
)

// Case I2.
func TestClientAddr_OnlyTrustedProxiesForward(t *testing.T) {
	t.Parallel()
	s := &Server{cfg: Config{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.7/32"), netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/8")}}}
	tests := []struct {
		name, from string
		header     http.Header
		want       string
	}{
		{"nothing is forwarded", "203.0.113.1:4000", nil, "203.0.113.1"},
		{"who is no proxy", "203.0.113.1:4000", http.Header{"X-Forwarded-For": {"198.51.100.1"}, "Forwarded": {"for=198.51.100.1"}}, "203.0.113.1"},
		{"a neighbour of a proxy", "10.0.0.8:4000", http.Header{"X-Forwarded-For": {"198.51.100.1"}}, "10.0.0.8"},
		{"a proxy", "10.0.0.7:4000", http.Header{"X-Forwarded-For": {"198.51.100.1"}}, "198.51.100.1"},
		{"a proxy, as IPv6", "[::ffff:10.0.0.7]:4000", http.Header{"X-Forwarded-For": {"198.51.100.1"}}, "198.51.100.1"},
		{"a proxy that says nothing", "10.0.0.7:4000", nil, "10.0.0.7"},
		{"what a client wrote before it", "10.0.0.7:4000", http.Header{"X-Forwarded-For": {"192.0.2.9, 198.51.100.1"}}, "198.51.100.1"},
		{"in a line of its own", "10.0.0.7:4000", http.Header{"X-Forwarded-For": {"192.0.2.9", "198.51.100.1"}}, "198.51.100.1"},
		{"who claims to be a proxy", "10.0.0.7:4000", http.Header{"X-Forwarded-For": {"192.0.2.9, 10.1.2.3, 198.51.100.1"}}, "198.51.100.1"},
		{"through two proxies", "10.0.0.7:4000", http.Header{"X-Forwarded-For": {"192.0.2.9, 198.51.100.1, 10.1.2.3"}}, "198.51.100.1"},
		{"proxies alone", "10.0.0.7:4000", http.Header{"X-Forwarded-For": {"10.1.0.1, 10.1.2.3"}}, "10.1.0.1"},
		{"a port", "10.0.0.7:4000", http.Header{"X-Forwarded-For": {"198.51.100.1:99"}}, "198.51.100.1"},
		{"IPv6", "[fd00::1]:4000", http.Header{"X-Forwarded-For": {"2001:db8::1"}}, "2001:db8::1"},
		{"IPv6 with a port", "[fd00::1]:4000", http.Header{"X-Forwarded-For": {"[2001:db8::1]:99"}}, "2001:db8::1"},
		{"no address", "10.0.0.7:4000", http.Header{"X-Forwarded-For": {"198.51.100.1, unknown"}}, "10.0.0.7"},
		{"an empty one", "10.0.0.7:4000", http.Header{"X-Forwarded-For": {"198.51.100.1,"}}, "10.0.0.7"},
		{"Forwarded", "10.0.0.7:4000", http.Header{"Forwarded": {`for=192.0.2.9, For="[2001:db8::1]:99";proto=https;by=10.0.0.7`}}, "2001:db8::1"},
		{"Forwarded without for", "10.0.0.7:4000", http.Header{"Forwarded": {`for=192.0.2.9, proto=https`}}, "10.0.0.7"},
		{"both the same", "10.0.0.7:4000", http.Header{"X-Forwarded-For": {"198.51.100.1"}, "Forwarded": {"for=198.51.100.1"}}, "198.51.100.1"},
		{"a client's own Forwarded", "10.0.0.7:4000", http.Header{"X-Forwarded-For": {"198.51.100.1"}, "Forwarded": {"for=192.0.2.9"}}, "10.0.0.7"},
	}
	for _, tt := range tests {
		t.Run("I2 "+tt.name, func(t *testing.T) {
			t.Parallel()
			if got := s.clientAddr(&http.Request{RemoteAddr: tt.from, Header: tt.header}); got != tt.want {
				t.Errorf("it comes from %s, want %s", got, tt.want)
			}
		})
	}
	long := http.Header{}
	for range 10_000 {
		long.Add("X-Forwarded-For", "10.1.0.1")
	}
	if got := s.clientAddr(&http.Request{RemoteAddr: "10.0.0.7:1", Header: long}); got != "10.1.0.1" {
		t.Errorf("it comes from %s", got)
	}
}
