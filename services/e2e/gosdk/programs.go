package gosdk

import (
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// BuildServer builds the SDK's conformance server and returns the program's path.
func BuildServer(t *testing.T) string {
	t.Helper()
	return BuildProgram(t, "everything-server")
}

// BuildProgram builds one of the SDK's conformance programs and returns its path.
func BuildProgram(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, "github.com/modelcontextprotocol/go-sdk/conformance/"+name)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return program
}

// StartServer starts the program of [BuildServer] on a free port and returns its URL. If stateless is true, the server
// uses no sessions. The server is killed when the test ends.
func StartServer(t *testing.T, stateless bool) string {
	t.Helper()
	program := BuildServer(t)
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := lis.Addr().String()
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(program, "-http", addr, "-stateless="+strconv.FormatBool(stateless))
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Wait() // the test kills the server, unless the server fails before it listens
	}()
	t.Cleanup(func() {
		_ = server.Process.Kill() // the server has no state to save
		<-ended
	})
	for range 1200 {
		if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr); err == nil {
			_ = conn.Close()
			return "http://" + addr
		}
		select {
		case <-ended:
			t.Fatal("the server has ended")
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Fatal("the server does not listen")
	return ""
}
