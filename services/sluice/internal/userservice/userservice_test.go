package userservice_test

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/userservice"
)

var update = flag.Bool("update", false, "write the golden files")

// system is an operating system whose service manager records the commands that are sent to it.
type system struct {
	calls []string
	// fails contains the beginnings of the commands that fail.
	fails []string
}

func (s *system) run(_ context.Context, name string, args ...string) (string, error) {
	call := strings.Join(append([]string{name}, args...), " ")
	s.calls = append(s.calls, call)
	for _, prefix := range s.fails {
		if strings.HasPrefix(call, prefix) {
			return "", errors.New("exit status 1: " + call)
		}
	}
	return "", nil
}

// newService returns a service whose paths contain the special characters of all formats.
func newService(t *testing.T, goos string, sys *system) *userservice.Service {
	t.Helper()
	home := t.TempDir()
	env := map[string]string{"PATH": `/home/ana/50% & "more"/bin:/usr/bin`, "HTTPS_PROXY": "http://proxy.example:3128", "SECRET": "not inherited"}
	return &userservice.Service{
		OS: goos, Program: "/opt/a b/$x/sluice", Config: "/home/ana/<c>/sluice.yaml", Data: filepath.Join(home, "data"),
		Home: home, User: `PC\ana`, UID: "501", Getenv: func(name string) string { return env[name] }, Run: sys.run,
	}
}

var systems = []string{"linux", "darwin", "windows"}

func TestDefinition_IsTheGoldenFile(t *testing.T) {
	t.Parallel()
	for _, goos := range systems {
		s := newService(t, goos, new(system))
		s.Data = "/home/ana/data"
		text, err := s.Definition()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, "not inherited") {
			t.Errorf("%s: the definition has a variable that it should not inherit", goos)
		}
		golden := filepath.Join("testdata", goos+".golden")
		if *update {
			if err := os.WriteFile(golden, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if text != string(want) {
			t.Errorf("%s: the definition is\n%s\nwant\n%s", goos, text, want)
		}
		if goos != "linux" {
			checkXML(t, goos, strings.Replace(text, `encoding="UTF-16"`, `encoding="UTF-8"`, 1))
		}
	}
}

func checkXML(t *testing.T, goos, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Errorf("%s: the definition is not valid XML: %v", goos, err)
			return
		}
	}
}

// The test lets systemd check the unit. For this check, the program must exist.
func TestDefinition_IsAValidUnit(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd-analyze")
	}
	s := newService(t, "linux", new(system))
	s.Program = filepath.Join(s.Home, "a b $x 50%", "sluice")
	if err := os.MkdirAll(filepath.Dir(s.Program), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/bin/true", s.Program); err != nil {
		t.Fatal(err)
	}
	text, err := s.Definition()
	if err != nil {
		t.Fatal(err)
	}
	verify := func(text string) (string, error) {
		unit := filepath.Join(s.Home, "sluice.service")
		if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), analyze, "--user", "--man=no", "verify", unit)
		cmd.Env = []string{"HOME=" + s.Home, "XDG_RUNTIME_DIR=" + s.Home, "PATH=" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := verify(strings.Replace(text, "ExecStart=", "ExecStart=/nowhere/", 1)); err == nil {
		t.Skipf("systemd-analyze does not detect a wrong unit here: %s", out)
	}
	if out, err := verify(text); err != nil || out != "" {
		t.Errorf("systemd-analyze: %v\n%s\n%s", err, out, text)
	}
}

func TestInstall_CanBeRepeatedAndRemoved(t *testing.T) {
	t.Parallel()
	// The map missing contains the commands that fail on a system on which the service is not installed yet.
	missing := map[string]string{"darwin": "launchctl print gui/501/", "windows": `schtasks /Query /TN \Sluice`}
	for _, goos := range systems {
		sys := &system{}
		if call := missing[goos]; call != "" {
			sys.fails = []string{call}
		}
		s := newService(t, goos, sys)
		if err := s.Install(t.Context()); err != nil {
			t.Fatalf("%s: %v", goos, err)
		}
		path, err := s.Path()
		if err != nil {
			t.Fatal(err)
		}
		first, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sys.calls, sys.fails = append(sys.calls, "# again"), nil
		if err := s.Install(t.Context()); err != nil {
			t.Fatalf("%s: %v", goos, err)
		}
		if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, first) {
			t.Errorf("%s: the second installation changed the definition: %v", goos, err)
		}
		sys.calls = append(sys.calls, "# with another program")
		s.Program += "2"
		if state, err := s.State(); err != nil || state != userservice.Outdated {
			t.Errorf("%s: the state is %v, %v", goos, state, err)
		}
		if err := s.Install(t.Context()); err != nil {
			t.Fatalf("%s: %v", goos, err)
		}
		sys.calls = append(sys.calls, "# remove")
		if removed, err := s.Remove(t.Context()); err != nil || !removed {
			t.Errorf("%s: %v, %v", goos, removed, err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s: the definition is still there", goos)
		}
		if removed, err := s.Remove(t.Context()); err != nil || removed {
			t.Errorf("%s: a second removal: %v, %v", goos, removed, err)
		}
		checkCalls(t, goos, strings.ReplaceAll(strings.Join(sys.calls, "\n")+"\n", s.Home, "HOME"))
	}
}

func checkCalls(t *testing.T, goos, calls string) {
	t.Helper()
	golden := filepath.Join("testdata", goos+"-calls.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(calls), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if calls != string(want) {
		t.Errorf("%s: the calls are\n%s\nwant\n%s", goos, calls, want)
	}
}

func TestInstall_KeepsADefinitionOfSomebodyElse(t *testing.T) {
	t.Parallel()
	for _, goos := range systems {
		sys := &system{}
		s := newService(t, goos, sys)
		if err := s.Install(t.Context()); err != nil {
			t.Fatal(err)
		}
		path, err := s.Path()
		if err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.Replace(raw, []byte("a"), []byte("e"), 1)
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		sys.calls = nil
		if err := s.Install(t.Context()); !errors.Is(err, userservice.ErrForeign) {
			t.Errorf("%s: Install returns %v", goos, err)
		}
		if removed, err := s.Remove(t.Context()); !errors.Is(err, userservice.ErrForeign) || removed {
			t.Errorf("%s: Remove returns %v, %v", goos, removed, err)
		}
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, changed) {
			t.Errorf("%s: the definition was changed: %v", goos, err)
		}
		for _, verb := range []string{"start", "restart", "disable", "bootout", "bootstrap", "/Create", "/Delete"} {
			if slices.ContainsFunc(sys.calls, func(call string) bool { return strings.Contains(call, " "+verb) }) {
				t.Errorf("%s: the service was changed: %v", goos, sys.calls)
			}
		}
	}
}

func TestInstall_WritesNothingWithoutAManager(t *testing.T) {
	t.Parallel()
	for goos, call := range map[string]string{"linux": "systemctl", "darwin": "launchctl", "windows": "schtasks"} {
		s := newService(t, goos, &system{fails: []string{call}})
		if err := s.Install(t.Context()); !errors.Is(err, userservice.ErrNoManager) || !strings.Contains(err.Error(), "a client starts the mesh") {
			t.Errorf("%s: Install returns %v", goos, err)
		}
		if state, err := s.State(); err != nil || state != userservice.Absent {
			t.Errorf("%s: the state is %v, %v", goos, state, err)
		}
	}
}

func TestDefinition_RefusesPasswordsAndControlCharacters(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"http://ana:pw@proxy.example": "has a password", "ana:p%zw@proxy.example": "has a password", "http://a\nExecStart=/bin/sh": "control character",
	} {
		s := newService(t, "linux", new(system))
		s.Getenv = func(string) string { return "" }
		if _, err := s.Definition(); err != nil {
			t.Fatal(err)
		}
		s.Getenv = func(name string) string { return map[string]string{"HTTPS_PROXY": value}[name] }
		if _, err := s.Definition(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with the proxy %q, Definition returns %v", value, err)
		}
		s.Getenv, s.Config = func(string) string { return "" }, "/a\nExecStart=/bin/sh"
		if _, err := s.Definition(); err == nil || !strings.Contains(err.Error(), "control character") {
			t.Errorf("Definition returns %v", err)
		}
	}
}
