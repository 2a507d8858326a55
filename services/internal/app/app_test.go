package app_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// programEnv is the name of an environment variable. If the variable is set, the test binary runs as the program of a
// service. The variable's value selects the behavior of the service.
const programEnv = "APP_TEST_AS_PROGRAM"

const waitTimeout = 20 * time.Second

func TestMain(m *testing.M) {
	what, ok := os.LookupEnv(programEnv)
	if !ok {
		os.Exit(m.Run())
	}
	app.Role(authv1.Role_ROLE_APPROVAL, func(_ context.Context, mesh app.Mesh) (rpc.Service, error) {
		if mesh.File == nil || mesh.Env == nil || mesh.Log == nil || mesh.Telemetry == nil || mesh.Tokens == nil || mesh.Conn == nil {
			return nil, errors.New("something is missing")
		}
		if what == "broken" {
			return nil, errors.New("it could not be built")
		}
		return service{what}, nil
	})
}

// service is a service without RPCs. It prints a line when it starts to run and when it is closed. It fails if the test
// requests that.
type service struct{ what string }

func (service) Register(grpc.ServiceRegistrar) {}

func (s service) Health(context.Context) error {
	if s.what == "ill" {
		return errors.New("ill")
	}
	return nil
}

func (s service) Run(ctx context.Context) error {
	fmt.Fprintln(os.Stderr, "it runs")
	if s.what == "fails" {
		return errors.New("it failed later")
	}
	<-ctx.Done()
	return nil
}

func (service) Close() error {
	fmt.Fprintln(os.Stderr, "it was closed")
	return nil
}

type program struct {
	*exec.Cmd
	out  syncBuffer
	done chan error
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func start(t *testing.T, what string, env []string, args ...string) *program {
	t.Helper()
	p := &program{Cmd: exec.Command(os.Args[0], args...), done: make(chan error, 1)}
	p.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SLUICE_") })
	p.Env = append(append(p.Env, programEnv+"="+what), env...)
	p.Stdout, p.Stderr = &p.out, &p.out
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.Wait() }()
	t.Cleanup(func() { _ = p.Process.Kill() })
	return p
}

// exitCode waits until the program ends and returns its exit code.
func (p *program) exitCode(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
		return p.ProcessState.ExitCode()
	case <-time.After(waitTimeout):
		t.Fatalf("the program did not end:\n%s", p.out.String())
		return 0
	}
}

// waitForOutput waits until the program has printed text.
func (p *program) waitForOutput(t *testing.T, text string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(waitTimeout); !strings.Contains(p.out.String(), text); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("the program did not print %q:\n%s", text, p.out.String())
		}
	}
}

// configure writes a configuration with certificates. It returns the file and the address on which the service must
// listen.
func configure(t *testing.T) (file, addr string) {
	t.Helper()
	dir := t.TempDir()
	authority, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	if err := authority.WriteRole(filepath.Join(dir, "certs"), authv1.Role_ROLE_APPROVAL); err != nil {
		t.Fatal(err)
	}
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr = lis.Addr().String()
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, "sluice.yaml")
	text := fmt.Sprintf("tls: {dir: certs}\nroles: {approval: {listen: %q}, policy: {addr: \"127.0.0.1:1\"}}\n", addr)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, addr
}

func TestRole_ExitCodes(t *testing.T) {
	t.Parallel()
	file, _ := configure(t)
	bare := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(bare, []byte("data: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		env  []string
		args []string
		code int
		says string
	}{
		{"help", nil, []string{"--help"}, 0, "approval serves the approval role of the Sluice mesh.\n\nUsage: approval --config FILE"},
		{"an unknown flag", nil, []string{"--listen", "x"}, 2, "flag provided but not defined: -listen"},
		{"an argument", nil, []string{"serve"}, 2, `approval: "serve" is not understood; see approval --help`},
		{"the version", nil, []string{"--version"}, 0, app.Version()},
		{"no configuration", nil, nil, 1, "approval: tls.dir is not set: roles in separate processes need certificates; make them with `sluice certs`"},
		{"one without certificates", nil, []string{"--config", bare}, 1, "tls.dir is not set"},
		{"one that is missing", nil, []string{"--config", "none.yaml"}, 1, "approval: the configuration none.yaml does not exist: name another with --config"},
		{"one that the environment names", []string{"SLUICE_CONFIG=none.yaml"}, nil, 1, "the configuration none.yaml does not exist"},
		{"the flag before the environment", []string{"SLUICE_CONFIG=none.yaml"}, []string{"--config", bare}, 1, "tls.dir is not set"},
		{"a broken variable", []string{"SLUICE_LISTEN=x"}, []string{"--config", file}, 1, "the environment variable SLUICE_LISTEN"},
		{"a probe without a running service", nil, []string{"--config", file, "-probe"}, 1, "approval: probe: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := start(t, "", tt.env, tt.args...)
			if code := p.exitCode(t); code != tt.code || !strings.Contains(p.out.String(), tt.says) {
				t.Errorf("exit code %d, want %d; the output is\n%s\nwant %q", code, tt.code, p.out.String(), tt.says)
			}
		})
	}
}

func TestRole_ServesUntilSIGTERM(t *testing.T) {
	t.Parallel()
	file, addr := configure(t)
	p := start(t, "well", []string{"SLUICE_CONFIG=" + file})
	p.waitForOutput(t, "it runs")
	p.waitForOutput(t, `"msg":"serving gRPC","service":"approval","address":"`+addr+`"`)
	probe := func() *program { return start(t, "well", []string{"SLUICE_CONFIG=" + file}, "-probe") }
	if asked := probe(); asked.exitCode(t) != 0 {
		t.Errorf("the probe failed:\n%s", asked.out.String())
	}
	if second := start(t, "well", []string{"SLUICE_CONFIG=" + file}); second.exitCode(t) != 1 || !strings.Contains(second.out.String(), "listen on roles.approval.listen: ") {
		t.Errorf("a second program on the same address printed\n%s", second.out.String())
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.exitCode(t); code != 0 || !strings.Contains(p.out.String(), "it was closed") {
		t.Errorf("the program ended with %d:\n%s", code, p.out.String())
	}
	if asked := probe(); asked.exitCode(t) != 1 {
		t.Error("the probe of a stopped role succeeded")
	}
}

func TestProbe_FailsWhenServiceIsUnhealthy(t *testing.T) {
	t.Parallel()
	file, _ := configure(t)
	start(t, "ill", nil, "--config", file).waitForOutput(t, "serving gRPC")
	if asked := start(t, "", nil, "--config", file, "-probe"); asked.exitCode(t) != 1 || !strings.Contains(asked.out.String(), "probe: the service is NOT_SERVING") {
		t.Errorf("the probe printed\n%s", asked.out.String())
	}
}

func TestRole_ExitsWhenBuildOrRunFails(t *testing.T) {
	t.Parallel()
	for what, says := range map[string]string{"broken": "approval: it could not be built", "fails": "approval: it failed later"} {
		file, _ := configure(t)
		p := start(t, what, nil, "--config", file)
		if code := p.exitCode(t); code != 1 || !strings.Contains(p.out.String(), says) {
			t.Errorf("%s: exit code %d, output\n%s", what, code, p.out.String())
		}
		if closed := strings.Contains(p.out.String(), "it was closed"); closed != (what == "fails") {
			t.Errorf("%s: closed is %t", what, closed)
		}
	}
}

func TestVersion_IsNotEmpty(t *testing.T) {
	t.Parallel()
	if app.Version() == "" {
		t.Error("no version")
	}
}

func TestNewLog_WritesJSONOrText(t *testing.T) {
	t.Parallel()
	for text, want := range map[bool]string{false: `"msg":"hello","service":"x","key":"value"`, true: `msg=hello service=x key=value`} {
		var out bytes.Buffer
		app.NewLog(&out, "x", text, slog.LevelInfo).InfoContext(t.Context(), "hello", "key", "value")
		if !strings.Contains(out.String(), want) {
			t.Errorf("logged %q, want %q", out.String(), want)
		}
	}
}
