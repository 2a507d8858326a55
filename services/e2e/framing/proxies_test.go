//go:build unix

package framing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// patience is the maximum time that a test waits for one event.
const patience = 20 * time.Second

// A proxy is a reverse proxy in front of the mesh that forwards only requests to the server "open".
type proxy struct {
	name string
	// start starts the proxy in front of the mesh at the address target, and returns the proxy's listen address.
	start func(t *testing.T, target string) string
}

func proxies() []proxy {
	return []proxy{{"nginx", startNginx}, {"HAProxy", startHAProxy}, {"one that reads Content-Length alone", startNaiveProxy}}
}

// findProgram returns the path of an installed program. If it is not installed, findProgram skips the test.
func findProgram(t *testing.T, name, debian string) string {
	t.Helper()
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/usr/local/sbin") {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path
		}
	}
	t.Skipf("%s is not installed, so this proxy is not tested (Debian: apt-get install %s)", name, debian)
	return ""
}

const nginxConfig = `daemon off; pid %[1]s/pid; error_log stderr; worker_processes 1;
events { worker_connections 64; }
http {
  access_log off;
  client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  upstream mesh { server %[3]s; keepalive 1; }
  server {
    listen %[2]s;
    location = /mcp/open {
      proxy_pass http://mesh; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_request_buffering off; proxy_buffering off;
      proxy_set_header Host localhost; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    }
    location / { return 403; }
  }
}
`

func startNginx(t *testing.T, target string) string {
	t.Helper()
	dir, addr := t.TempDir(), stack.FreeAddr(t)
	runProxy(t, addr, fmt.Sprintf(nginxConfig, dir, addr, target), findProgram(t, "nginx", "nginx-light"), "-p", dir, "-e", "stderr", "-c")
	return addr
}

const haproxyConfig = `global
  maxconn 64
defaults
  mode http
  timeout connect 5s
  timeout client 10s
  timeout server 10s
  option http-keep-alive
  http-reuse always
frontend front
  bind %s
  http-request deny unless { path /mcp/open }
  default_backend mesh
backend mesh
  option forwardfor
  http-request set-header Host localhost
  server mesh %s
`

func startHAProxy(t *testing.T, target string) string {
	t.Helper()
	addr := stack.FreeAddr(t)
	runProxy(t, addr, fmt.Sprintf(haproxyConfig, addr, target), findProgram(t, "haproxy", "haproxy"), "-db", "-f")
	return addr
}

// runProxy runs a program with a configuration file until the test ends. It returns when the program accepts
// connections.
func runProxy(t *testing.T, addr, config string, command ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var said outputBuffer
	cmd := exec.Command(command[0], append(command[1:], file)...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &said, &said, &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // the signal goes to the process group, because the program has child processes
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", command[0], said.String())
		}
	})
	for end := time.Now().Add(patience); ; {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not listen: %s", command[0], said.String())
		}
		<-time.After(10 * time.Millisecond)
	}
}

// outputBuffer collects a program's output. The test may read it at the same time.
type outputBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *outputBuffer) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *outputBuffer) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// startNaiveProxy starts a faulty proxy. It reads only Content-Length, forwards headers unchanged, and uses one
// connection to the mesh for all clients.
func startNaiveProxy(t *testing.T, target string) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	context.AfterFunc(ctx, func() { _ = lis.Close() })
	n := &naiveProxy{target: target}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
				_ = n.serve(conn) // an error ends the connection with the client
			})
		}
	})
	t.Cleanup(func() {
		stop()
		serving.Wait()
		n.closeConnection()
	})
	return lis.Addr().String()
}

type naiveProxy struct {
	target string

	mu   sync.Mutex
	back *textproto.Reader
	conn net.Conn
}

var errNotOpen = errors.New("only /mcp/open is forwarded")

// serve forwards a client's requests one by one.
func (n *naiveProxy) serve(client net.Conn) error {
	in := textproto.NewReader(newReader(client))
	for {
		first, err := in.ReadLineBytes()
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(first, []byte("POST /mcp/open ")) {
			_, _ = io.WriteString(client, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
			return errNotOpen
		}
		head, length := []byte(string(first)+"\r\n"), 0
		for {
			line, err := in.ReadLineBytes()
			if err != nil {
				return err
			}
			head = append(append(head, line...), "\r\n"...)
			if len(line) == 0 {
				break
			}
			if name, value, ok := strings.Cut(string(line), ":"); ok && strings.EqualFold(name, "Content-Length") {
				length, _ = strconv.Atoi(strings.TrimSpace(value)) // a value that is not a number counts as 0
			}
		}
		body := make([]byte, min(max(length, 0), 1<<20))
		if _, err := io.ReadFull(in.R, body); err != nil {
			return err
		}
		if err := n.forward(client, append(head, body...)); err != nil {
			return err
		}
	}
}

// forward forwards one request to the mesh, and the response to the client.
func (n *naiveProxy) forward(client net.Conn, request []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for kept := true; kept; { // the mesh may have closed the connection that is in use
		if kept = n.conn != nil; !kept {
			conn, err := net.Dial("tcp", n.target)
			if err != nil {
				return err
			}
			n.conn, n.back = conn, textproto.NewReader(newReader(conn))
		}
		_ = n.conn.SetDeadline(time.Now().Add(time.Second))
		if _, err := n.conn.Write(request); err == nil {
			resp, err := http.ReadResponse(n.back.R, nil)
			if err == nil {
				defer n.closeIfLast(resp.Close)
				return resp.Write(client)
			}
		}
		_ = n.conn.Close()
		n.conn = nil
	}
	return io.ErrUnexpectedEOF
}

func (n *naiveProxy) closeIfLast(last bool) {
	if last {
		_ = n.conn.Close()
		n.conn = nil
	}
}

func (n *naiveProxy) closeConnection() {
	if n.conn != nil {
		_ = n.conn.Close()
	}
}
