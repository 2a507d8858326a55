package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
)

// startForward runs the command with a target, and returns the address at which the command listens.
func startForward(t *testing.T, target string) string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	logReader, logWriter := io.Pipe()
	root := (&tool{self: "sluice", out: io.Discard, errOut: logWriter}).root()
	root.SetArgs([]string{"forward", "127.0.0.1:0=" + target})
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the command ended with %v", err)
		}
	})
	lines := bufio.NewScanner(logReader)
	if !lines.Scan() {
		t.Fatal("the command printed nothing")
	}
	var line struct{ Address string }
	if err := json.Unmarshal(lines.Bytes(), &line, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatalf("the command printed %s: %v", lines.Text(), err)
	}
	go io.Copy(io.Discard, logReader) // later output is dropped
	return line.Address
}

func TestForward_CopiesBytesInBothDirections(t *testing.T) {
	t.Parallel()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	go func() { // answers with the received bytes after the sender has closed its side
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			raw, _ := io.ReadAll(conn)
			_, _ = conn.Write(append([]byte("got "), raw...))
			_ = conn.Close()
		}
	}()
	addr := startForward(t, lis.Addr().String())
	for range 2 {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		_ = conn.(*net.TCPConn).CloseWrite()
		if raw, err := io.ReadAll(conn); err != nil || string(raw) != "got hello" {
			t.Errorf("answered %q, %v", raw, err)
		}
		_ = conn.Close()
	}
}

func TestForward_ClosesTheConnectionWhenTheTargetDoes(t *testing.T) {
	t.Parallel()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	checkClosed(t, startForward(t, lis.Addr().String()))
}

func TestForward_LimitsOpenConnections(t *testing.T) {
	t.Parallel()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	addr := startForward(t, lis.Addr().String())
	for range maxForwarded {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if conn, err = lis.Accept(); err != nil { // the connection has a slot
			t.Fatal(err)
		}
		defer conn.Close()
	}
	checkClosed(t, addr)
}

// checkClosed connects to an address, and fails the test unless the peer closes the connection.
func checkClosed(t *testing.T, addr string) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read %d bytes, %v", n, err)
	} else if netErr, ok := errors.AsType[net.Error](err); ok && netErr.Timeout() {
		t.Error("the connection was left open")
	}
}

func TestForward_ClosesTheConnectionIfTheTargetIsUnreachable(t *testing.T) {
	t.Parallel()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away := lis.Addr().String()
	_ = lis.Close()
	checkClosed(t, startForward(t, away))
}

func TestForward_RefusesInvalidAddresses(t *testing.T) {
	t.Parallel()
	for _, given := range []string{"x", ":9001", ":9001=", "=policy:9001", ":9001=policy", "9001=policy:9001"} {
		root := (&tool{self: "sluice", out: io.Discard, errOut: io.Discard}).root()
		root.SetArgs([]string{"forward", given})
		if err := root.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%q was accepted", given)
		}
	}
}
