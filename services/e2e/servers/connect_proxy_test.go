package servers_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// unresolvableHost is a host name that does not resolve. It can be reached only through the proxy.
const unresolvableHost = "mcp.behind-the-proxy.invalid"

// serveWithPrivateCA makes the server at the URL target available over TLS, with a certificate for unresolvableHost
// from a CA that no system trusts. It returns the address at which it serves, and the path of the CA certificate.
func serveWithPrivateCA(t *testing.T, target string) (addr, file string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{unresolvableHost}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "ca.pem")
	stack.WriteFile(t, file, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(&url.URL{Scheme: u.Scheme, Host: u.Host}))
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.Listener.Addr().String(), file
}

// connectProxy is a proxy that accepts only CONNECT requests with the correct credentials. It forwards every connection
// to the address in the field to.
type connectProxy struct {
	to string

	mu    sync.Mutex
	asked []string
}

const proxyPassword = "hB4pX9wQ2nLs7TzR"

func (p *connectProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.Method+" "+r.Host)
	p.mu.Unlock()
	r.Header.Set("Authorization", r.Header.Get("Proxy-Authorization"))
	switch _, password, _ := r.BasicAuth(); {
	case password != proxyPassword:
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	case r.Method != http.MethodConnect || !strings.HasPrefix(r.Host, unresolvableHost):
		w.WriteHeader(http.StatusForbidden)
		return
	}
	up, err := new(net.Dialer).DialContext(r.Context(), "tcp", p.to)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer up.Close()
	w.WriteHeader(http.StatusOK)
	down, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer down.Close()
	go func() { _, _ = io.Copy(up, buffered) }()
	_, _ = io.Copy(down, up)
}

func (p *connectProxy) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.asked...)
}

// Case S1. The gateway connects to a server through a CONNECT proxy and with a private CA. The test also checks the
// error if the proxy or the CA can't be used.
func TestConnectProxy_ReachesAServerWithAPrivateCA(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	to, ca := serveWithPrivateCA(t, up.URL)
	at := "https://" + unresolvableHost + "/mcp"
	for name, c := range map[string]struct {
		http  string
		env   []string
		works bool
		told  []string
		asked int // 1 if the proxy must receive a request, -1 if it must not
	}{
		"proxy and CA":               {http: `proxy: "http://me:${env:PROXY_PASSWORD}@PROXY", ca: ` + ca, works: true, asked: 1},
		"the environment's":          {http: `proxy: env, ca: ` + ca, env: []string{"HTTPS_PROXY=http://me:" + proxyPassword + "@PROXY"}, works: true, asked: 1},
		"the environment's, lower":   {http: `proxy: env, ca: ` + ca, env: []string{"https_proxy=http://me:" + proxyPassword + "@PROXY"}, works: true, asked: 1},
		"the environment's, not for": {http: `proxy: env, ca: ` + ca, env: []string{"HTTPS_PROXY=http://me:" + proxyPassword + "@PROXY", "NO_PROXY=.invalid"}, told: []string{"the server can't be reached"}, asked: -1},
		"the environment's, unasked": {http: `ca: ` + ca, env: []string{"HTTPS_PROXY=http://me:" + proxyPassword + "@PROXY"}, told: []string{"the server can't be reached", "http.proxy: env"}, asked: -1},
		"no CA":                      {http: `proxy: "http://me:${env:PROXY_PASSWORD}@PROXY"`, told: []string{"certificate can't be verified", "servers.far.http.ca"}, asked: 1},
		"wrong credentials":          {http: `proxy: "http://me:` + serverSecret + `@PROXY", ca: ` + ca, told: []string{"refuses the gateway: HTTP 407", "servers.far.http.proxy"}, asked: 1},
		"no proxy there":             {http: `proxy: "http://me:${env:PROXY_PASSWORD}@127.0.0.1:1", ca: ` + ca, told: []string{"the proxy of the server can't be reached"}, asked: -1},
		"a proxy that may not be":    {http: `proxy: "http://me:${env:PROXY_PASSWORD}@169.254.169.254:3128", ca: ` + ca, told: []string{"the proxy of the server can't be reached"}, asked: -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := &connectProxy{to: to}
			web := httptest.NewServer(proxy)
			defer web.Close()
			here := strings.TrimPrefix(web.URL, "http://")
			s := stack.WriteConfig(t, stack.Options{
				Policy: stack.OpenPolicy, Servers: fmt.Sprintf("  far: {http: {url: %q, %s}}", at, strings.ReplaceAll(c.http, "@PROXY", "@"+here)) + "\n",
			})
			s.Env = []string{"PROXY_PASSWORD=" + proxyPassword}
			for _, v := range c.env {
				s.Env = append(s.Env, strings.ReplaceAll(v, "@PROXY", "@"+here))
			}
			p := stack.Start(t, s)
			answer := string(postMessage(t, p.MCP("far"), stack.InitializeRequest, http.Header{}))
			if strings.Contains(answer, `"serverInfo"`) != c.works {
				t.Errorf("the agent receives %s", answer)
			}
			for _, want := range c.told {
				if !strings.Contains(answer, want) {
					t.Errorf("%q is not in %s", want, answer)
				}
			}
			asked := proxy.requests()
			if (len(asked) > 0) != (c.asked > 0) {
				t.Errorf("the proxy received %q", asked)
			}
			for _, request := range asked {
				if request != "CONNECT "+unresolvableHost+":443" {
					t.Errorf("the proxy received %s", request)
				}
			}
			ran := stack.Run(t, stack.Command{Args: []string{"status", "--addr", p.GRPC}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}})
			for _, text := range []string{answer, ran.Stdout, ran.Stderr, p.Stderr()} {
				if strings.Contains(text, proxyPassword) || strings.Contains(text, serverSecret) {
					t.Errorf("the output has the password of the proxy: %s", text)
				}
			}
		})
	}
}
