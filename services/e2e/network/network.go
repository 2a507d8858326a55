// Package network provides a proxy that simulates network faults between clients and a server. It provides the faults
// of toxiproxy, and two faults that toxiproxy lacks: [Proxy.DropSilently] and [Proxy.DropCommitResponses].
package network

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/rs/zerolog"
)

// Proxy forwards connections to a server. A test sets one fault at a time, and ends it with [Proxy.EndFault].
type Proxy struct {
	// Addr is the address at which clients reach the server.
	Addr string

	proxy *toxiproxy.Proxy
	wire  *faultState
	added []string // the toxics that implement the current fault
}

// Start starts a proxy for the server at the given address. The proxy is stopped when the test ends.
func Start(t testing.TB, server string) *Proxy {
	t.Helper()
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &Proxy{proxy: toxiproxy.NewProxy(api, "server", "127.0.0.1:0", server), wire: new(faultState)}
	toxics.Register(kind, new(direction))
	for _, stream := range []string{"upstream", "downstream"} {
		added, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(`{"type": %q, "name": %q, "stream": %[2]q}`, kind, stream)))
		if err != nil {
			t.Fatal(err)
		}
		*added.Toxic.(*direction) = direction{wire: p.wire, up: stream == "upstream"}
	}
	if err := p.proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.proxy.Stop)
	p.Addr = p.proxy.Listen
	return p
}

// Refuse closes all connections and refuses new ones.
func (p *Proxy) Refuse(testing.TB) { p.proxy.Stop() }

// Silence accepts connections but delivers no data on them. The connections end when the fault ends.
func (p *Proxy) Silence(t testing.TB) { p.addToxics(t, "timeout", `{"timeout": 0}`) }

// Delay delays all data in both directions.
func (p *Proxy) Delay(t testing.TB, delay time.Duration) {
	p.addToxics(t, "latency", fmt.Sprintf(`{"latency": %d}`, delay.Milliseconds()))
}

// Reset resets each connection as soon as data is sent on it.
func (p *Proxy) Reset(t testing.TB) { p.addToxics(t, "reset_peer", `{"timeout": 0}`) }

// DropSilently drops all data on existing connections and on connections that are opened during the fault. If one end
// closes a connection, the other end is not informed, as with a firewall that has lost its state. The affected
// connections never recover.
func (p *Proxy) DropSilently(testing.TB) { p.wire.toggleDrop() }

// DropCommitResponses forwards the next commit to PostgreSQL. From then on, it closes connections instead of forwarding
// the server's responses.
func (p *Proxy) DropCommitResponses(testing.TB) { p.wire.commits.Store(commitAwaited) }

// OpenedConnections returns the number of connections that clients have opened.
func (p *Proxy) OpenedConnections() int64 { return p.wire.opened.Load() }

// EndFault ends the current fault.
func (p *Proxy) EndFault(t testing.TB) {
	t.Helper()
	for _, name := range p.added {
		if err := p.proxy.Toxics.RemoveToxic(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	p.added = nil
	p.wire.endFaults()
	if err := p.proxy.Start(); err != nil && err != toxiproxy.ErrProxyAlreadyStarted { //nolint:errorlint // toxiproxy does not wrap this error
		t.Fatal(err)
	}
}

func (p *Proxy) addToxics(t testing.TB, toxic, attributes string) {
	t.Helper()
	for _, stream := range []string{"upstream", "downstream"} {
		name := toxic + " " + stream
		if _, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(
			`{"type": %q, "name": %q, "stream": %q, "attributes": %s}`, toxic, name, stream, attributes))); err != nil {
			t.Fatal(err)
		}
		p.added = append(p.added, name)
	}
}
