// Package sqlstoretest starts real databases for tests.
package sqlstoretest

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

const (
	// startTime limits how long a server takes to start.
	startTime = time.Minute
	// missing is the error message if PostgreSQL is not installed.
	missing = "these tests start a PostgreSQL of their own and need its programs (13 or later): install them " +
		"(Debian: apt-get install postgresql; macOS: brew install postgresql), or name their folder in PG_BIN"
)

// Server is a PostgreSQL server that a test has started. It is safe for concurrent use.
type Server struct {
	bin, dir string
	addr     string
	as       *syscall.SysProcAttr
	made     atomic.Int64
}

var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Main runs the tests of a test program, and then stops the servers that the tests have started. Every package that
// calls [Postgres] must call Main in its TestMain.
func Main(m *testing.M) int {
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.remove(); err != nil {
			fmt.Fprintln(os.Stderr, "stop PostgreSQL:", err)
			code = max(code, 1)
		}
	}
	return code
}

// Postgres returns the URL of an empty database on a server that all tests of the program share. The URL allows 30 s
// for connecting, because the machine may be busy. A test that makes the server unavailable must start its own server
// with [Start].
func Postgres(t testing.TB) string {
	t.Helper()
	skipWithout(t)
	shared.once.Do(func() { shared.server, shared.err = newServer() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server.Database(t) + "?connect_timeout=30"
}

// skipWithout skips a test that needs PostgreSQL if `make test` has found no PostgreSQL.
func skipWithout(t testing.TB) {
	t.Helper()
	if os.Getenv("SLUICE_TEST_NO_POSTGRES") == "1" {
		t.Skip("SLUICE_TEST_NO_POSTGRES is set")
	}
}

// Start starts a server for one test, which may stop and restart the server. When the test ends, the server is removed.
func Start(t testing.TB) *Server {
	t.Helper()
	skipWithout(t)
	s, err := newServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.remove(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Addr returns the address on which the server listens.
func (s *Server) Addr() string { return s.addr }

// Database creates an empty database and returns its URL.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test%d", s.made.Add(1))
	db, err := sql.Open("pgx", s.url(s.addr, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }() // an error has no consequences
	if _, err := db.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return s.url(s.addr, name)
}

// Through returns the URL of a database with the host and port replaced with another address, for example the address
// of a proxy.
func (s *Server) Through(addr, database string) string { return s.url(addr, filepath.Base(database)) }

func (*Server) url(addr, database string) string {
	return "postgres://postgres@" + addr + "/" + database
}

// Kill stops the server abruptly, as in a crash.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if err := s.stop("immediate"); err != nil {
		t.Fatal(err)
	}
}

// Restart starts the server again at the same address.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

func newServer() (*Server, error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "postgres")
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, dir: dir}
	if err := s.setUp(); err != nil {
		return nil, fmt.Errorf("%w, %w", err, os.RemoveAll(dir))
	}
	return s, nil
}

func (s *Server) setUp() error {
	var err error
	if s.as, err = unprivileged(s.dir); err != nil {
		return err
	}
	lis, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.addr = lis.Addr().String()
	if err := lis.Close(); err != nil {
		return err
	}
	if err := s.run("initdb", "--pgdata", s.data(), "--username", "postgres", "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--no-locale"); err != nil {
		return err
	}
	return s.start()
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) start() error {
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		return err
	}
	return s.run("pg_ctl", "start", "--wait", "--timeout", strconv.Itoa(int(startTime.Seconds())), "--pgdata", s.data(),
		"--log", filepath.Join(s.dir, "log"),
		// Tests end this server, but not the machine. Therefore no data must be on disk before a commit is confirmed.
		"--options", "-c listen_addresses=127.0.0.1 -c port="+port+" -c unix_socket_directories='' -c max_connections=200"+
			" -c fsync=off -c full_page_writes=off")
}

func (s *Server) stop(mode string) error {
	return s.run("pg_ctl", "stop", "--wait", "--mode", mode, "--pgdata", s.data())
}

func (s *Server) remove() error {
	if _, err := os.Stat(filepath.Join(s.data(), "postmaster.pid")); err == nil {
		if err := s.stop("immediate"); err != nil {
			return err
		}
	}
	return os.RemoveAll(s.dir)
}

// run runs one of PostgreSQL's programs until it exits.
func (s *Server) run(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*startTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...) //nolint:gosec // runs only PostgreSQL's programs
	cmd.SysProcAttr = s.as
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "HOME="+s.dir)
	out, err := os.CreateTemp(s.dir, name) // a pipe would stay open in the server
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }() // the file is removed with the directory
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		output, _ := os.ReadFile(out.Name())
		logged, _ := os.ReadFile(filepath.Join(s.dir, "log"))
		return fmt.Errorf("%s: %w\n%s%s", name, err, bytes.TrimSpace(output), logged)
	}
	return nil
}

// programs returns the directory that contains PostgreSQL's programs.
func programs() (string, error) {
	if bin := os.Getenv("PG_BIN"); bin != "" {
		return bin, nil
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("no PostgreSQL is installed: %s", missing)
	}
	return filepath.Dir(found[len(found)-1]), nil
}
