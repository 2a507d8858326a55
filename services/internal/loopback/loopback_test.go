package loopback_test

import (
	"net"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/loopback"
)

func TestHost(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "LocalHost": true, "127.0.0.1": true, "127.8.9.1": true, "::1": true, "::ffff:127.0.0.1": true,
		"": false, "localhost.": false, "localhost.evil.example": false, "127.0.0.1.nip.io": false, "evil.example": false,
		"2130706433": false, "0177.0.0.1": false, "0x7f.0.0.1": false, "127.1": false, "127.0.0.01": false,
		"0.0.0.0": false, "::": false, "::ffff:10.0.0.1": false, "::1%eth0": false, "10.0.0.1": false, "[::1]": false,
		"127.0.0.1@evil.example": false, "127.0.0.1\x00.evil.example": false, "127.0.0.1\x20": false,
	} {
		if got := loopback.Host(host); got != want {
			t.Errorf("%q: %t, want %t", host, got, want)
		}
	}
	for address, want := range map[string]bool{
		"127.0.0.1:80": true, "[::1]:80": true, "localhost:80": true,
		"127.0.0.1": false, "::1:80": false, "10.0.0.1:80": false, "dns:///127.0.0.1:80": false, "": false,
	} {
		if got := loopback.Address(address); got != want {
			t.Errorf("%q: %t, want %t", address, got, want)
		}
	}
}

func TestDial_ConnectsOnlyToLoopback(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	conn, err := loopback.Dial(t.Context(), "tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	// The network 192.0.2.0/24 is reserved for documentation (RFC 5737). A real attempt to connect to such an address
	// would not fail quickly.
	for _, address := range []string{"192.0.2.1:80", "[2001:db8::1]:80", "[::ffff:192.0.2.1]:80"} {
		if conn, err := loopback.Dial(t.Context(), "tcp", address); err == nil {
			_ = conn.Close()
			t.Errorf("%s: connected", address)
		}
	}
}
