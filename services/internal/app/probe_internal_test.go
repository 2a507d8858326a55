package app

import "testing"

func TestProbeTarget(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		":9001": "localhost:9001", "0.0.0.0:9001": "localhost:9001", "[::]:9001": "localhost:9001",
		"127.0.0.1:9001": "127.0.0.1:9001", "10.1.2.3:9001": "10.1.2.3:9001", "[::1]:9001": "[::1]:9001", "policy:9001": "policy:9001",
	} {
		if got, err := probeTarget(addr); err != nil || got != want {
			t.Errorf("%s is probed at %s, %v; want %s", addr, got, err, want)
		}
	}
	if _, err := probeTarget("9001"); err == nil {
		t.Error("an address without a port was read")
	}
}
