package sandbox_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/norace"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// roleEnv is the name of an environment variable. If it is set, its value selects what the test binary does instead of
// normally running the tests.
const roleEnv = "SANDBOX_TEST_ROLE"

var launcher sandbox.Launcher

func TestMain(m *testing.M) {
	launcher = sandbox.RunLauncher()
	var at targets
	_ = json.Unmarshal([]byte(os.Getenv("TARGETS")), &at)
	switch os.Getenv(roleEnv) {
	case "hostile":
		_ = json.MarshalWrite(os.Stdout, attempts(at))
	case "nested":
		_ = json.MarshalWrite(os.Stdout, unmounted(at))
	case "victim":
		runVictim()
	case "without namespaces":
		if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	default:
		os.Exit(norace.Run(m)) // about a hundred processes run; with the race detector, each would take a second to start
	}
}

// runVictim is the main function of a process that stands in for the gateway in the tests. It prints a line when it
// receives a signal.
func runVictim() {
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGUSR1)
	fmt.Println("up")
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	<-got
	fmt.Println("signalled")
}

// fixture is a directory with the files of a mesh, which the hostile program attacks.
type fixture struct {
	targets
	dir      string
	rules    sandbox.Rules
	victim   *exec.Cmd
	victimed *bytes.Buffer
	stop     func()
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "home", "project")
	data := filepath.Join(dir, ".sluice")
	h := &fixture{dir: dir, targets: targets{
		Own: filepath.Join(data, "gateway/servers/mine/a"), Data: data, Token: filepath.Join(data, "tokens/operator"),
		Key: filepath.Join(data, "gateway/journal/hmac.key"), Journal: filepath.Join(data, "gateway/journal/calls-1"),
		Other: filepath.Join(data, "gateway/servers/other/b/note"), Config: filepath.Join(dir, "sluice.yaml"),
		Policy: filepath.Join(dir, "policies/a.yaml"), Cert: filepath.Join(dir, "certs/gateway-key.pem"), Secret: filepath.Join(dir, "secret"),
		Program: filepath.Join(dir, "bin/sluice"), Root: os.Getuid() == 0,
	}}
	for _, file := range []string{h.Token, h.Key, h.Journal, h.Other, h.Config, h.Policy, h.Cert, h.Secret, h.Program, filepath.Join(h.Own, "note"), filepath.Join(dir, "shared/note")} {
		put(t, file, "secret of "+filepath.Base(file))
	}
	h.rules = sandbox.Rules{
		Mode: sandbox.Auto, Secret: []string{data, h.Config, filepath.Dir(h.Cert), h.Secret},
		Private: []string{filepath.Join(data, "gateway/servers"), filepath.Dir(h.Policy)}, Programs: []string{h.Program}, Home: filepath.Dir(dir),
	}
	h.listen(t)
	h.startVictim(t)
	return h
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// listen opens sockets outside the directories that the sandbox hides.
func (h *fixture) listen(t *testing.T) {
	t.Helper()
	short, err := os.MkdirTemp("", "s") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	h.Socket, h.Abstract = filepath.Join(short, "socket"), fmt.Sprintf("@sluice-sandbox-test-%d", os.Getpid())+filepath.Base(short)
	for _, addr := range []string{h.Socket, h.Abstract} {
		lis, err := new(net.ListenConfig).Listen(t.Context(), "unix", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = lis.Close() })
	}
}

func (h *fixture) startVictim(t *testing.T) {
	t.Helper()
	h.victim = exec.CommandContext(t.Context(), "/proc/self/exe", "victim-of-the-test")
	h.victim.Env = []string{roleEnv + "=victim", "SECRET=environment"}
	h.victim.Dir = h.Data
	in, err := h.victim.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.victimed = new(bytes.Buffer)
	h.victim.Stdout = h.victimed
	if err := h.victim.Start(); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(h.Data, "token"), "in the victim's folder")
	h.Victim = h.victim.Process.Pid
	h.stop = sync.OnceFunc(func() {
		_ = in.Close()
		_ = h.victim.Wait()
	})
	t.Cleanup(h.stop)
}

// attack runs the hostile program and returns the results of its attempts.
func (h *fixture) attack(t *testing.T, s *sandbox.Sandbox) map[string]string {
	t.Helper()
	raw, err := json.Marshal(h.targets)
	if err != nil {
		t.Fatal(err)
	}
	leak, err := unix.Open(h.Token, unix.O_RDONLY, 0) // the descriptor is not closed on exec
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	out := run(t, s, sandbox.Command{
		Path: "/proc/self/exe", Args: []string{"hostile"}, Env: []string{roleEnv + "=hostile", "TARGETS=" + string(raw)}, Dir: h.Own, Own: h.Own,
	})
	var got map[string]string
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return got
}

// run runs a program in the sandbox until it exits, and returns its output.
func run(t *testing.T, s *sandbox.Sandbox, c sandbox.Command) string {
	t.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	process, err := s.Start(c, [3]*os.File{null, w, w}, &syscall.SysProcAttr{Setsid: true})
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := process.Wait(); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	return string(out)
}

// sandbox returns a sandbox that uses the given mechanism. If this system does not support the mechanism, the test
// fails. If SLUICE_TEST_NO_SANDBOX is set, the test is skipped instead.
func (h *fixture) sandbox(t *testing.T, by sandbox.Mechanism) *sandbox.Sandbox {
	t.Helper()
	s, err := sandbox.NewBy(launcher, h.rules, by)
	switch {
	case err != nil && os.Getenv("SLUICE_TEST_NO_SANDBOX") != "":
		t.Skip(err)
	case err != nil:
		t.Fatalf("if this is expected, set SLUICE_TEST_NO_SANDBOX=1 to skip the test: %v", err)
	}
	return s
}

// eachUser runs a test as the current user. If this user is root, it also runs the test as the user nobody.
func eachUser(t *testing.T, f func(t *testing.T)) {
	if os.Getenv("SANDBOX_TEST_CHILD") != "" {
		f(t)
		return
	}
	t.Run("as "+strconv.Itoa(os.Getuid()), f)
	if os.Getuid() != 0 {
		return
	}
	t.Run("as nobody", func(t *testing.T) {
		runAsOther(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
	})
}

// runAsOther runs the top-level test of the current test in another process.
func runAsOther(t *testing.T, sys *syscall.SysProcAttr, env ...string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "again") //nolint:usetesting // another user can't enter the test's directory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+name+"$", "-test.v")
	cmd.Env = append([]string{"SANDBOX_TEST_CHILD=1", "TMPDIR=" + dir, "HOME=" + dir}, env...)
	cmd.Dir, cmd.SysProcAttr = dir, sys
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+name) {
		t.Errorf("%v\n%s", err, out)
	}
}

// Case X6. Without a sandbox, all attempts of a hostile program succeed. With a sandbox, an attempt succeeds only if
// the report lists it as not enforced.
func TestSandbox_StopsHostileProgram(t *testing.T) {
	eachUser(t, func(t *testing.T) {
		open := newFixture(t)
		all := open.attack(t, sandbox.Nothing())
		for _, name := range []string{
			"read token", "read key", "read journal", "read another's", "read config", "read policy", "read certificate", "read secret", "list tokens",
			"write journal", "write policy", "write config", "write program", "truncate key", "plant", "rename .sluice", "rename project", "replace config",
			"proc environ", "proc mem", "proc root" + open.Token, "see process", "signal", "limits", "priority", "ptrace", "process_vm_readv", "inherited", "path socket", "abstract socket", "symbolic link", "hard link", "nested bind",
		} {
			if _, ok := all[name]; !ok && (!open.Root || name != "nested bind") { // in the user namespace, this process does not own the files of root
				t.Errorf("%s: the attempt also fails without a sandbox, so it shows nothing", name)
			}
		}
		t.Run("namespaces", func(t *testing.T) {
			h := newFixture(t)
			s := h.sandbox(t, sandbox.ByNamespaces)
			got := h.attack(t, s)
			if _, ran := got["nested ran"]; !ran {
				t.Error("no user namespace could be created in the sandbox, so the attempts in one were not made")
			}
			delete(got, "nested ran")
			for name, what := range got {
				t.Errorf("%s: %s", name, what)
			}
			h.mustBeWhole(t)
		})
		t.Run("Landlock", func(t *testing.T) {
			h := newFixture(t)
			s := h.sandbox(t, sandbox.ByLandlock)
			t.Log(s.Report())
			for name, what := range h.attack(t, s) {
				switch name {
				case "see process", "path socket", "priority": // the report lists them as not enforced
				case "nested ran", "nested failed":
				default:
					t.Errorf("%s: %s", name, what)
				}
			}
			h.mustBeWhole(t)
		})
	})
}

// mustBeWhole checks, outside the sandbox, that the attacks have not changed the protected files.
func (h *fixture) mustBeWhole(t *testing.T) {
	t.Helper()
	for _, file := range []string{h.Token, h.Key, h.Journal, h.Other, h.Config, h.Policy, h.Cert, h.Secret, h.Program} {
		if raw, err := os.ReadFile(file); err != nil || string(raw) != "secret of "+filepath.Base(file) {
			t.Errorf("%s holds %q, %v", file, raw, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(h.Data, "planted")); err == nil {
		t.Error("something was planted in the data folder")
	}
	h.stop()
	if strings.Contains(h.victimed.String(), "signalled") {
		t.Error("a process was signalled")
	}
}
