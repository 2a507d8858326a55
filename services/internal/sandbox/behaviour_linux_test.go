package sandbox_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// shell runs a script in the sandbox. The working directory is the program's own directory.
func (h *fixture) shell(t *testing.T, s *sandbox.Sandbox, script string) string {
	t.Helper()
	return run(t, s, sandbox.Command{
		Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin", "HOME=" + h.Own}, Dir: h.Own, Own: h.Own,
	})
}

// eachMechanism runs a test with each mechanism, both as the current user and as the user nobody.
func eachMechanism(t *testing.T, edit func(*fixture), f func(t *testing.T, h *fixture, s *sandbox.Sandbox)) {
	t.Helper()
	eachUser(t, func(t *testing.T) {
		for _, by := range []string{"namespaces", "Landlock"} {
			t.Run(by, func(t *testing.T) {
				h := newFixture(t)
				if edit != nil {
					edit(h)
				}
				way := sandbox.ByNamespaces
				if by != "namespaces" {
					way = sandbox.ByLandlock
				}
				f(t, h, h.sandbox(t, way))
			})
		}
	})
}

// The sandbox changes neither the files next to hidden files nor the program's directory.
func TestSandbox_OtherFilesAreUnchanged(t *testing.T) {
	eachMechanism(t, nil, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		shared := filepath.Join(h.dir, "shared")
		for script, want := range map[string]string{
			"cat note": "secret of note", "pwd": h.Own, "echo x > new && mv new newer && cat newer": "x",
			"cat " + shared + "/note":      "secret of note",
			"cd " + shared + " && ls note": "note",
			"cat " + h.Program:             "secret of sluice",
			"echo y > " + shared + "/y && mkdir " + shared + "/d && mv " + shared + "/y " + shared + "/d && cat " + shared + "/d/y": "y",
			"(sleep 0.1; echo late) & wait": "late",
			"id -u":                         strconv.Itoa(os.Getuid()),
			"echo z > /dev/null && head -c 1 /dev/zero | od -An -tx1 | tr -d ' '": "00",
			"readlink /proc/self/cwd": h.Own,
		} {
			if got := strings.TrimSpace(h.shell(t, s, script)); got != want {
				t.Errorf("%s: %q, want %q", script, got, want)
			}
		}
	})
}

// The sandbox returns the program's exit status. Processes that the program started end when the program ends.
func TestSandbox_ReturnsExitStatus(t *testing.T) {
	eachMechanism(t, nil, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		process, err := s.Start(sandbox.Command{
			Path: "/bin/sh", Args: []string{"sh", "-c", "exit 7"}, Env: []string{}, Dir: h.Own, Own: h.Own,
		}, [3]*os.File{null, null, null}, &syscall.SysProcAttr{Setsid: true})
		if err != nil {
			t.Fatal(err)
		}
		if state, err := process.Wait(); err != nil || state.ExitCode() != 7 {
			t.Errorf("%v, %v", state, err)
		}
		if got := h.shell(t, s, "kill -9 $$; echo still"); got != "" {
			t.Errorf("a process of the program still runs: %q", got)
		}
	})
}

// Case X6. The rules allow reading or writing paths in private directories. A secret directory still can't be opened.
func TestSandbox_OpensReadAndWritePaths(t *testing.T) {
	eachMechanism(t, func(h *fixture) {
		h.rules.Read, h.rules.Write = []string{filepath.Dir(h.Policy)}, []string{filepath.Dir(h.Other)}
	}, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		if got := h.shell(t, s, "cat "+h.Policy+" "+h.Other); got != "secret of a.yamlsecret of note" {
			t.Errorf("what is opened reads %q", got)
		}
		h.shell(t, s, "echo x >> "+h.Policy+"; echo x > "+filepath.Dir(h.Policy)+"/new; echo x > "+filepath.Dir(h.Other)+"/new")
		if _, err := os.Stat(filepath.Join(filepath.Dir(h.Other), "new")); err != nil {
			t.Errorf("what is to be written is not: %v", err)
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(h.Policy), "new")); err == nil {
			t.Error("what is only to be read was written")
		}
		if raw, _ := os.ReadFile(h.Policy); string(raw) != "secret of a.yaml" {
			t.Errorf("the policy is %q", raw)
		}
	})
	h := newFixture(t)
	link := filepath.Join(h.dir, "link")
	if err := os.Symlink(filepath.Dir(h.Token), link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{h.Token, filepath.Dir(h.Token), h.Data, h.dir, "/", h.Config, filepath.Dir(h.Cert), link, filepath.Join(link, "operator"), filepath.Join(h.Data, "gateway")} {
		rules := h.rules
		rules.Read = []string{path}
		if _, err := sandbox.New(launcher, rules); err == nil || !strings.HasPrefix(err.Error(), "read: ") {
			t.Errorf("%s is opened: %v", path, err)
		}
	}
}

// Case X6. The rules allow no network. Only the loopback interface is available.
func TestSandbox_NoNetworkLeavesLoopback(t *testing.T) {
	eachMechanism(t, func(h *fixture) { h.rules.NoNetwork = true }, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		if s.Report().By == "namespaces" {
			if got := h.shell(t, s, "tail -n +3 /proc/self/net/dev | cut -d: -f1 | tr -d ' '"); got != "lo\n" {
				t.Errorf("interfaces: %q", got)
			}
			return
		}
		if holds := s.Report().String(); !strings.Contains(holds, "TCP") || !strings.Contains(holds, "not enforced") || !strings.Contains(holds, "UDP") {
			t.Error(holds)
		}
	})
}

// Case X6. A hidden file is replaced. The mount over the old file disappears with the file, and the sandbox hides the
// new file too.
func TestSandbox_HidesReplacedFiles(t *testing.T) {
	eachMechanism(t, nil, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		files := h.Config + " " + h.Secret + " " + h.Policy
		done := make(chan string, 1)
		go func() { // the program may read the file for a short time, and must never write to a program
			done <- h.shell(t, s, "touch up; until [ -e stop ]; do (: >> "+h.Program+") 2>/dev/null && echo wrote; done; for f in "+files+"; do "+
				"i=0; while [ $i -lt 1000 ] && cat $f >/dev/null 2>&1; do i=$((i+1)); done; cat $f; done 2>/dev/null; cat "+h.Token)
		}()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if _, err := os.Stat(filepath.Join(h.Own, "up")); err == nil {
				break
			}
		}
		for _, file := range []string{h.Config, h.Secret, h.Program} {
			put(t, file+".new", "secret of "+filepath.Base(file))
			if err := os.Rename(file+".new", file); err != nil {
				t.Fatal(err)
			}
		}
		policies := filepath.Dir(h.Policy)
		if err := os.Rename(policies, policies+".old"); err != nil {
			t.Fatal(err)
		}
		put(t, h.Policy, "secret of a.yaml")
		put(t, filepath.Join(h.Own, "stop"), "")
		if got := <-done; strings.Contains(got, "secret of") || strings.Contains(got, "wrote") {
			t.Errorf("the program printed %q", got)
		}
		h.mustBeWhole(t)
	})
}

func TestSandbox_ProgramCanSetItsOwnLimits(t *testing.T) {
	eachMechanism(t, nil, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		if got := h.shell(t, s, "ulimit -n 77 && ulimit -n"); got != "77\n" {
			t.Errorf("the program printed %q", got)
		}
	})
}

// Case X6. An editor repeatedly saves a hidden file at random times. If a path disappears while the sandbox is hiding
// it, the sandbox looks up the path again, and the program keeps running.
func TestSandbox_ProgramSurvivesReplacedFiles(t *testing.T) {
	eachMechanism(t, nil, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		done := make(chan string, 1)
		go func() {
			done <- h.shell(t, s, "touch up; until [ -e stop ]; do :; done; "+
				"i=0; while [ $i -lt 1000 ] && cat "+h.Config+" >/dev/null 2>&1; do i=$((i+1)); done; cat "+h.Config+" 2>/dev/null; echo lived")
		}()
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if _, err := os.Stat(filepath.Join(h.Own, "up")); err == nil {
				break
			}
		}
		for i := range 200 {
			put(t, h.Config+".new", "secret of sluice.yaml")
			time.Sleep(time.Duration(i) * 5 * time.Microsecond)
			if err := os.Rename(h.Config+".new", h.Config); err != nil {
				t.Fatal(err)
			}
		}
		put(t, filepath.Join(h.Own, "stop"), "")
		if got := <-done; got != "lived\n" {
			t.Errorf("the program printed %q", got)
		}
	})
}

// Case X6. A path that must be hidden does not exist when a program starts, and is created later in any directory. The
// sandbox then hides it.
func TestSandbox_HidesFilesThatAppearLater(t *testing.T) {
	for name, late := range map[string]string{"a file": "shared/late", "a file in new folders": "shared/folder/deep/late"} {
		t.Run("X6 "+name, func(t *testing.T) {
			at := func(h *fixture) string { return filepath.Join(h.dir, late) }
			eachMechanism(t, func(h *fixture) { h.rules.Secret = append(h.rules.Secret, at(h)) }, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
				done := make(chan string, 1)
				go func() { // the program may read the file for a short time
					done <- h.shell(t, s, "cat "+h.dir+"/shared/note; touch up; until [ -e stop ]; do :; done; "+
						"i=0; while [ $i -lt 1000 ] && cat "+at(h)+" >/dev/null 2>&1; do i=$((i+1)); done; cat "+at(h)+" 2>/dev/null")
				}()
				tick := time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for range tick.C {
					if _, err := os.Stat(filepath.Join(h.Own, "up")); err == nil {
						break
					}
				}
				put(t, at(h), "secret that came late")
				put(t, filepath.Join(h.Own, "stop"), "")
				if got := <-done; got != "secret of note" {
					t.Errorf("the program printed %q", got)
				}
			})
		})
	}
}

// Case X6. User namespaces can't be created. The sandbox uses Landlock, and the report contains the reason.
func TestSandbox_UsesLandlockWithoutUserNamespaces(t *testing.T) {
	if os.Getenv("SANDBOX_TEST_CHILD") == "" {
		runAsOther(t, &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
			AmbientCaps: []uintptr{unix.CAP_SYS_RESOURCE},
		}, roleEnv+"=without namespaces")
		return
	}
	h := newFixture(t)
	s, err := sandbox.New(launcher, h.rules)
	if err != nil {
		t.Fatal(err)
	}
	if r := s.Report(); r.By != "Landlock" || !strings.HasPrefix(r.Why, "no namespaces: ") {
		t.Errorf("%+v", r)
	}
	h.rules.Mode = sandbox.Required
	if _, err := sandbox.New(launcher, h.rules); err == nil || !strings.Contains(err.Error(), "not enforced: ") {
		t.Errorf("what does not hold is required, and %v", err)
	}
	got := h.attack(t, s)
	for _, name := range []string{"read token", "read config", "signal", "ptrace", "rename project", "proc environ"} {
		if what, ok := got[name]; ok {
			t.Errorf("%s: %s", name, what)
		}
	}
}

// Case X6. The path to a hidden file contains a symbolic link. The sandbox mounts the link over itself. The program
// can't replace the link or read its target. If an operator replaces the link, the new link is mounted over itself.
func TestSandbox_LinksCannotBeReplaced(t *testing.T) {
	eachMechanism(t, func(h *fixture) {
		target := filepath.Join(h.dir, "elsewhere.yaml")
		if err := os.Rename(h.Config, target); err != nil {
			panic(err)
		}
		if err := os.Symlink(target, h.Config); err != nil {
			panic(err)
		}
	}, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		if got := h.shell(t, s, "cat "+h.Config+" "+h.dir+"/elsewhere.yaml"); strings.Contains(got, "secret of") {
			t.Errorf("the program read %q", got)
		}
		if s.Report().By != "namespaces" {
			return
		}
		const attack = `exec 2>/dev/null; ln -sfn /etc/passwd $L && echo replaced; mv $L $L.old && echo renamed; rm -f $L && echo removed; mv $OWN/own $L && echo moved; : > $OWN/seen; readlink $L`
		vars := "L=" + h.Config + " OWN=" + h.Own + "; ln -sfn /etc/passwd $OWN/own; "
		target := filepath.Join(h.dir, "elsewhere.yaml")
		if got := strings.TrimSpace(h.shell(t, s, vars+attack)); got != target || strings.Contains(s.Report().String(), "the link ") {
			t.Errorf("the program printed %q, and the report is %s", got, s.Report())
		}
		done := make(chan string, 1)
		put(t, filepath.Join(h.dir, "third.yaml"), "secret of third.yaml")
		go func() {
			done <- h.shell(t, s, vars+"touch $OWN/up; n=0; until [ $n -gt 500 ] || [ -e $OWN/stop ] && grep -q \" $L \" /proc/self/mountinfo; do sleep 0.02; n=$((n+1)); done; "+attack)
		}()
		awaitFile(t, filepath.Join(h.Own, "up"))
		if err := errors.Join(os.Symlink(filepath.Join(h.dir, "third.yaml"), h.Config+".new"), os.Rename(h.Config+".new", h.Config)); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(h.Own, "stop"), "")
		if got := strings.TrimSpace(<-done); got != filepath.Join(h.dir, "third.yaml") {
			t.Errorf("after the link was replaced from outside the program printed %q", got)
		}
	})
}

// Case X6. If a directory contains only files of the mesh, a new file in the directory is hidden too. For hidden files
// in other directories, the report says that their replacements are not hidden.
func TestSandbox_HidesWholeFolderOfMesh(t *testing.T) {
	eachMechanism(t, func(h *fixture) {
		h.Config = filepath.Join(h.dir, "etc", "sluice.yaml")
		if err := errors.Join(os.Mkdir(filepath.Dir(h.Config), 0o700), os.WriteFile(h.Config, []byte("secret of sluice.yaml"), 0o600), os.Remove(h.Secret)); err != nil {
			panic(err)
		}
		h.rules.Secret = []string{h.Data, h.Config, filepath.Dir(h.Cert)}
	}, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		folder := filepath.Dir(h.Config)
		if got := h.shell(t, s, "ls "+folder+"; cat "+h.Config+"; echo x > "+folder+"/sluice.yaml.new"); strings.Contains(got, "secret of") || strings.HasPrefix(got, "sluice.yaml") {
			t.Errorf("the program printed %q", got)
		}
		if _, err := os.Lstat(h.Config + ".new"); err == nil {
			t.Error("the program created a file in the folder")
		}
		if r := s.Report(); r.By == "namespaces" && len(r.NotEnforced) > 0 {
			t.Error(r)
		}
		h.rules.Secret = append(h.rules.Secret, filepath.Join(h.dir, "shared", "note"))
		put(t, filepath.Join(h.dir, "shared", "other"), "")
		if r := h.sandbox(t, sandbox.ByNamespaces).Report(); !strings.Contains(r.String(), "a replacement of "+filepath.Join(h.dir, "shared", "note")) {
			t.Error(r)
		}
	})
}

// If a program could not create directories in HOME, the sandbox creates the cache directories of common programs there
// before the program starts.
func TestSandbox_CreatesCacheFolders(t *testing.T) {
	eachMechanism(t, nil, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		home := h.rules.Home
		got := run(t, s, sandbox.Command{
			Path: "/bin/sh", Args: []string{"sh", "-c", "mkdir -p ~/.npm/x ~/.cache/y && ls ~/.npm ~/.cache"}, Env: []string{"PATH=/usr/bin:/bin", "HOME=" + home}, Dir: h.Own, Own: h.Own,
		})
		if !strings.Contains(got, "x\n") || !strings.Contains(got, "y\n") {
			t.Error(got)
		}
	})
}

func TestNew_RequiresLauncher(t *testing.T) {
	t.Parallel()
	if _, err := sandbox.New(sandbox.Launcher{}, sandbox.Rules{Mode: sandbox.Auto}); err == nil {
		t.Error("a sandbox has no launcher")
	}
	if _, err := sandbox.New(sandbox.Launcher{}, sandbox.Rules{Mode: sandbox.Off}); err != nil {
		t.Error(err)
	}
}
