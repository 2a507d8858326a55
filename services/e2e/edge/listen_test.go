package edge_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/pki"
)

// The MCP edge listens on non-loopback addresses only with TLS or behind a proxy. Otherwise tokens would be sent in
// plaintext to other machines. This rule applies to addresses in the configuration and in flags.
func TestListen_PlaintextIsServedOnlyOnLoopback(t *testing.T) {
	t.Parallel()
	_, cert := newCertificate(t, t.TempDir())
	secure := fmt.Sprintf("listen_tls: {cert: %q, key: %q}", cert+".pem", cert+"-key.pem")
	for _, tt := range []struct {
		name, listen, extra string
		args                []string
		serves              bool
	}{
		{"every address", "0.0.0.0:0", "", nil, false},
		{"every address, by a flag", "127.0.0.1:0", "", []string{"--listen", ":0"}, false},
		{"loopback", "127.0.0.1:0", "", nil, true},
		{"behind a proxy", "0.0.0.0:0", "behind_proxy: [10.0.0.7]", nil, true},
		{"with TLS", "0.0.0.0:0", secure, nil, true},
		{"with a certificate that is not there", "0.0.0.0:0", "listen_tls: {cert: none.pem, key: none-key.pem}", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := stack.Launch(t, stack.WriteConfig(t, stack.Options{Policy: stack.OpenPolicy, Listen: tt.listen, Extra: tt.extra}), append([]string{"--output", "json"}, tt.args...)...)
			if p.AwaitServing() != tt.serves {
				t.Errorf("the mesh serves: %t, want %t: %s", !tt.serves, tt.serves, p.Stderr())
			}
			if !tt.serves {
				if err := p.Wait(); err == nil || !strings.Contains(p.Stderr(), "listen") {
					t.Errorf("the mesh ended with %v: %s", err, p.Stderr())
				}
			}
		})
	}
}

// newCertificate creates a CA and a certificate that the CA has signed. It writes the certificate to DIR/mcp.pem and
// the certificate's key to DIR/mcp-key.pem. It returns the CA and the string DIR/mcp.
func newCertificate(t *testing.T, dir string) (*pki.Authority, string) {
	t.Helper()
	authority, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "mcp")
	renewCertificate(t, authority, name, 0)
	return authority, name
}

// renewCertificate replaces the certificate file and the key file whose paths begin with the string name.
func renewCertificate(t *testing.T, authority *pki.Authority, name string, life time.Duration) {
	t.Helper()
	cert, key, err := authority.Issue(pki.Leaf{Name: "mcp", Life: life})
	if err := errors.Join(err, pki.WriteFile(name+"-key.pem", key, 0o600), pki.WriteFile(name+".pem", cert, 0o644)); err != nil {
		t.Fatal(err)
	}
}

// Case F26. The MCP edge uses a renewed certificate while calls are in flight. If the new certificate is invalid, the
// edge keeps the old one.
func TestListen_RenewedCertificateIsServed(t *testing.T) {
	t.Parallel()
	authority, name := newCertificate(t, t.TempDir())
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Policy: stack.OpenPolicy, Extra: fmt.Sprintf("listen_tls: {cert: %q, key: %q}", name+".pem", name+"-key.pem"),
	}))
	addr := strings.TrimPrefix(strings.TrimPrefix(p.URL, "https://"), "http://")
	if !strings.HasPrefix(p.URL, "https://") {
		t.Errorf("the URL of MCP is %s", p.URL)
	}
	trust := &tls.Config{RootCAs: authority.Pool(), ServerName: "localhost"}
	serial := func() string {
		conn, err := tls.Dial("tcp", addr, trust)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	stop := make(chan struct{})
	var calls, failed atomic.Int32
	var calling sync.WaitGroup
	calling.Go(func() {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true}}
		for {
			select {
			case <-stop:
				return
			default:
			}
			resp, err := client.Get("https://" + addr + "/readyz")
			calls.Add(1)
			if err != nil || resp.StatusCode != http.StatusOK {
				failed.Add(1)
				continue
			}
			_ = resp.Body.Close()
		}
	})
	first := serial()
	renewCertificate(t, authority, name, 0)
	eventually.Holds(t, "the new certificate is served", func() bool { return serial() != first })
	second := serial()
	for what, spoil := range map[string]func(){
		"a key that is cut off": func() { stack.WriteFile(t, name+"-key.pem", "-----BEGIN PRIVATE KEY-----\nMC4C") },
		"one that has ended":    func() { renewCertificate(t, authority, name, -1) },
	} {
		before := strings.Count(p.Stderr(), "certificates do not load")
		spoil()
		eventually.Holds(t, what+" is logged", func() bool { return strings.Count(p.Stderr(), "certificates do not load") > before })
		if serial() != second {
			t.Errorf("%s replaced the certificate that works", what)
		}
	}
	renewCertificate(t, authority, name, 0)
	eventually.Holds(t, "the certificate that works is served", func() bool { return serial() != second })
	close(stop)
	calling.Wait()
	if calls.Load() == 0 || failed.Load() > 0 {
		t.Errorf("%d of %d calls failed meanwhile", failed.Load(), calls.Load())
	}
	if resp, err := http.Get("http://" + addr + "/readyz"); err == nil && resp.StatusCode == http.StatusOK {
		t.Error("MCP is also served without TLS")
	}
}

// Case X2. If there are too many unauthenticated connections to the MCP edge, they are closed. Other connections are
// not closed.
func TestListen_SilentConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, stack.OpenPolicy, "")
	good := f.Connect(t)
	addr := strings.TrimPrefix(f.URL, "http://")
	silent := make([]net.Conn, 600)
	for i := range silent {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent[i] = conn
	}
	if resp := good.Call("safe", "{}"); resp.IsError(t) {
		t.Errorf("the earlier client is refused: %s", resp.Body)
	}
	if resp := f.Connect(t).Call("safe", "{}"); resp.IsError(t) {
		t.Errorf("a new client is refused: %s", resp.Body)
	}
	gone := 0
	for _, conn := range silent {
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			gone++
		}
	}
	if gone < 600-256 {
		t.Errorf("%d of 600 silent connections were closed, want at least %d", gone, 600-256)
	}
}

// Case I2. The record contains the client address that a trusted proxy declares for a request. The declaration of any
// other peer is ignored.
func TestListen_AddressFromATrustedProxyIsRecorded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, trusts, want string }{
		{"a proxy that is trusted", "127.0.0.1", "198.51.100.1"},
		{"one that is not", "10.0.0.7", "127.0.0.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := stack.Start(t, stack.WriteConfig(t, stack.Options{Policy: stack.OpenPolicy, Servers: "  raw: {http: {url: \"http://127.0.0.1:1\"}}", Extra: "behind_proxy: [" + tt.trusts + "]"}))
			c := stack.NewClient(t, p.MCP("raw"), strings.Repeat("x", 40))
			c.Header = http.Header{"X-Forwarded-For": {"192.0.2.9, 198.51.100.1"}}
			if resp := c.Post("{}"); resp.Status != http.StatusUnauthorized {
				t.Fatalf("%d %s", resp.Status, resp.Body)
			}
			if err := p.Stop(t); err != nil {
				t.Fatal(err)
			}
			files, err := filepath.Glob(filepath.Join(p.Journal(), "refusals-*.jsonl"))
			if err != nil || len(files) == 0 {
				t.Fatalf("the journal has no refusals: %v", err)
			}
			text, err := os.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), `"peer":"`+tt.want+`"`) {
				t.Errorf("the record does not have the address %s:\n%s", tt.want, text)
			}
		})
	}
}
