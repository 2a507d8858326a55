package connlimit_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/sluice-mesh/sluice/services/internal/connlimit"
)

// addressListener is a listener whose connections have remote addresses that the test chooses.
type addressListener struct {
	*bufconn.Listener
	from chan string
}

type addressConn struct {
	net.Conn
	addr net.Addr
}

func (c addressConn) RemoteAddr() net.Addr { return c.addr }

func (w addressListener) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return addressConn{conn, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(<-w.from))}, nil
}

// testListener is a [connlimit.Listener] to which a test can connect.
type testListener struct {
	t    *testing.T
	wing addressListener
	door *connlimit.Listener
}

func open(t *testing.T, limits connlimit.Limits) *testListener {
	t.Helper()
	w := addressListener{bufconn.Listen(1 << 10), make(chan string, 1)}
	d, err := connlimit.Listen(w, limits, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return &testListener{t, w, d}
}

// enter connects from an address and returns the client's end and the server's end of the connection.
func (h *testListener) enter(addr string) (outside net.Conn, inside *connlimit.Conn) {
	h.t.Helper()
	h.wing.from <- addr
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, _ := h.wing.Dial() // Dial waits until the server accepts
		accepted <- conn
	}()
	conn, err := h.door.Accept()
	outside = <-accepted
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _, _ = outside.Close(), conn.Close() })
	return outside, conn.(*connlimit.Conn) //nolint:forcetypeassert // Listener.Accept documents this type
}

func closed(conn net.Conn) bool {
	_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := conn.Read(make([]byte, 1))
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe)
}

func smallLimits() connlimit.Limits {
	return connlimit.Limits{MaxUnauthenticated: 4, MaxPerAddress: 2, MaxPerCaller: 2, IdentifyTimeout: time.Hour}
}

// Case X2. There are too many unauthenticated connections. If too many come from one address, the oldest connection
// from this address is closed. Otherwise the oldest connection from the address with the most connections is closed.
// Identified connections stay open.
func TestListener_ClosesOldestUnauthenticatedConnection(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		come []string
		// known lists the clients that identify themselves immediately. gone lists the clients whose connections are closed.
		known, gone []int
	}{
		{"as many as may", []string{"10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1", "10.0.0.2:2"}, nil, nil},
		{"one address", []string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.1:4"}, nil, []int{0, 2}},
		{"one address whose oldest is known", []string{"10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.1:4"}, []int{0}, []int{1}},
		{"many addresses", []string{"10.0.0.9:1", "10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1", "10.0.0.3:1"}, nil, []int{1}},
		{"one network of IPv6", []string{"[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8::3:4]:1", "[2001:db8:0:1::1]:1"}, nil, []int{0}},
		{"IPv4 as IPv6", []string{"10.0.0.1:1", "[::ffff:10.0.0.1]:2", "10.0.0.1:3"}, nil, []int{0}},
	}
	for _, tt := range tests {
		t.Run("X2 "+tt.name, func(t *testing.T) {
			t.Parallel()
			h := open(t, smallLimits())
			var outside []net.Conn
			for i, addr := range tt.come {
				out, in := h.enter(addr)
				outside = append(outside, out)
				for _, known := range tt.known {
					if known == i && !in.Identify("ana") {
						t.Errorf("%d has no room", i)
					}
				}
			}
			for i, out := range outside {
				want := false
				for _, gone := range tt.gone {
					want = want || gone == i
				}
				if closed(out) != want {
					t.Errorf("%d, from %s: closed is %t, want %t", i, tt.come[i], !want, want)
				}
			}
		})
	}
}

// Case X2. Connections without data from the client are closed before connections with data. If all clients have sent
// data, the oldest connection is closed.
func TestListener_ClosesSilentConnectionsFirst(t *testing.T) {
	t.Parallel()
	h := open(t, smallLimits())
	speaks, inside := h.enter("10.0.0.1:1")
	go func() { _, _ = speaks.Write([]byte("x")) }()
	if _, err := inside.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	silent := make([]net.Conn, 3)
	for i := range silent {
		silent[i], inside = h.enter("10.0.0.1:2")
		if closed(speaks) {
			t.Fatal("a connection that has sent data was closed for a silent one")
		}
		if i > 0 && !closed(silent[i-1]) {
			t.Error("a silent connection was not closed for a newer one")
		}
	}
	go func() { _, _ = silent[2].Write([]byte("x")) }()
	if _, err := inside.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if h.enter("10.0.0.1:3"); !closed(speaks) || closed(silent[2]) {
		t.Error("the closed connection is not the oldest one that has sent data")
	}
}

// Case X2. A caller has a quota of connections. A closed connection no longer counts toward the quota.
func TestConn_LimitsConnectionsPerCaller(t *testing.T) {
	t.Parallel()
	h := open(t, smallLimits())
	_, first := h.enter("10.0.0.1:1")
	_, second := h.enter("10.0.0.2:1")
	_, third := h.enter("10.0.0.3:1")
	if first.IsIdentified() || !first.Identify("ana") || !second.Identify("ana") || third.Identify("ana") {
		t.Error("the number of connections of a caller is not limited to MaxPerCaller")
	}
	if !first.IsIdentified() || third.IsIdentified() {
		t.Error("IsIdentified is wrong for an identified or a refused connection")
	}
	if !first.Identify("ana") || !first.Identify("ben") || !third.Identify("ben") {
		t.Error("an identified connection was refused, or callers share a limit")
	}
	_, fourth := h.enter("10.0.0.4:1")
	if fourth.Identify("") {
		t.Error("an empty caller was accepted")
	}
	if err := errors.Join(first.Close(), first.Conn.Close()); err != nil {
		t.Fatal(err)
	}
	if first.Identify("ana") {
		t.Error("a closed connection accepted a caller")
	}
	if !fourth.Identify("ana") {
		t.Error("a closed connection still counts")
	}
}

// Case X2.
func TestListener_ClosesUnidentifiedConnectionAfterTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limits := smallLimits()
		limits.IdentifyTimeout = 10 * time.Second
		limits.IsTrusted, limits.MaxProxied = func(a netip.Addr) bool { return a == netip.MustParseAddr("10.9.9.9") }, 1+2*limits.MaxUnauthenticated
		h := open(t, limits)
		silent, _ := h.enter("10.0.0.1:1")
		known, in := h.enter("10.0.0.1:2")
		in.Identify("ana")
		proxy, _ := h.enter("10.9.9.9:1")
		for i := range 2 * limits.MaxUnauthenticated {
			_, in := h.enter("10.9.9.9:2")
			if !in.Identify("ben") {
				t.Errorf("the proxy can't open connection %d", i)
			}
		}
		time.Sleep(limits.IdentifyTimeout + time.Second)
		if !closed(silent) || closed(known) || closed(proxy) {
			t.Error("the unidentified connection stays, or another one was closed")
		}
	})
}

// Case X2. A client does not read its responses. The server reads no more requests from this client.
func TestConn_StopsReadingWhileClientDoesNotRead(t *testing.T) {
	t.Parallel()
	limits := smallLimits()
	limits.WriteTimeout = time.Minute
	h := open(t, limits)
	out, in := h.enter("10.0.0.1:1")
	written := make(chan error, 1)
	go func() {
		_, err := in.Write(make([]byte, 4<<10)) // more than the pipe's buffer holds
		written <- err
	}()
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil { // the server's write has begun
		t.Fatal(err)
	}
	if _, err := out.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := in.Read(make([]byte, 1))
		read <- err
	}()
	select {
	case <-read:
		t.Error("the server read from a client that does not read")
	case <-time.After(50 * time.Millisecond):
	}
	if _, err := io.ReadFull(out, make([]byte, 4<<10-1)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(<-written, <-read); err != nil {
		t.Error(err)
	}
}

// Case X2. The connections from all trusted proxies together are limited.
func TestListener_LimitsConnectionsOfProxies(t *testing.T) {
	t.Parallel()
	limits := smallLimits()
	limits.IsTrusted, limits.MaxProxied = func(netip.Addr) bool { return true }, 1
	h := open(t, limits)
	_, first := h.enter("10.9.9.9:1")
	refused := make(chan net.Conn, 1)
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, _ := h.door.Accept()
		accepted <- conn
	}()
	h.wing.from <- "10.9.9.9:2"
	go func() {
		conn, _ := h.wing.Dial()
		refused <- conn
	}()
	if _, err := (<-refused).Read(make([]byte, 1)); err == nil {
		t.Error("more connections than MaxProxied were accepted")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	h.wing.from <- "10.9.9.9:3"
	if _, err := h.wing.Dial(); err != nil {
		t.Fatal(err)
	}
	if conn := <-accepted; conn == nil {
		t.Error("no connection was accepted after another one was closed")
	}
}

func TestListen_RequiresEveryLimit(t *testing.T) {
	t.Parallel()
	lis := bufconn.Listen(1)
	for name, drop := range map[string]func(*connlimit.Limits){
		"strangers": func(l *connlimit.Limits) { l.MaxUnauthenticated = 0 }, "each address": func(l *connlimit.Limits) { l.MaxPerAddress = 0 },
		"each caller": func(l *connlimit.Limits) { l.MaxPerCaller = 0 }, "time": func(l *connlimit.Limits) { l.IdentifyTimeout = 0 },
		"proxies": func(l *connlimit.Limits) { l.IsTrusted = func(netip.Addr) bool { return true } },
	} {
		limits := smallLimits()
		drop(&limits)
		if _, err := connlimit.Listen(lis, limits, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("a listener was made without the limit %s", name)
		}
	}
	if _, err := connlimit.Listen(nil, smallLimits(), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a listener was made without an inner listener")
	}
	if _, err := connlimit.Listen(lis, smallLimits(), nil); err == nil {
		t.Error("a listener was made without a log")
	}
}
