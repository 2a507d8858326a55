package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// terminalScreen collects the output of a program at a terminal.
type terminalScreen struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *terminalScreen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *terminalScreen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// terminalUp is a `sluice up` process that was started at a terminal without --config.
type terminalUp struct {
	screen terminalScreen
	person *os.File
	cmd    *exec.Cmd
	// ended is closed when the process has ended and screen contains all of its output.
	ended chan struct{}
}

// startUpAtTerminal starts `sluice up` at a terminal in the directory dir. home is the home directory, in which the
// command records the configurations that the user has accepted.
func startUpAtTerminal(t *testing.T, dir, home string) *terminalUp {
	t.Helper()
	person, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	u := &terminalUp{person: person, cmd: exec.CommandContext(t.Context(), stack.Program(t, "sluice"), "up"), ended: make(chan struct{})}
	u.cmd.Dir, u.cmd.Env = dir, append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME=")
	u.cmd.Stdin, u.cmd.Stdout, u.cmd.Stderr = terminal, terminal, terminal
	u.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := u.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = terminal.Close()
	go func() {
		defer close(u.ended)
		_, _ = io.Copy(&u.screen, person) // an error means that the process has ended and that all of its output was read
		_ = u.cmd.Wait()                  // the exit code is read from ProcessState
	}()
	t.Cleanup(u.stop)
	return u
}

func (u *terminalUp) stop() {
	_ = u.cmd.Process.Signal(syscall.SIGTERM) // the process may have ended already
	<-u.ended
	_ = u.person.Close()
}

const agreeQuestion = "Run the mesh with this file? You are asked once for this content. Type yes: "

// awaitText waits until one of the strings is on the screen, and returns it.
func (u *terminalUp) awaitText(t *testing.T, texts ...string) string {
	t.Helper()
	found := ""
	eventually.Holds(t, "the screen shows one of "+strings.Join(texts, " | "), func() bool {
		for _, text := range texts {
			if strings.Contains(u.screen.String(), text) {
				found = text
			}
		}
		return found != ""
	})
	return found
}

func (u *terminalUp) typeText(t *testing.T, text string) {
	t.Helper()
	if _, err := u.person.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

const upMessage = "Stop with Ctrl-C."

func localConfig(server string) string {
	return "listen: 127.0.0.1:0\ngrpc: 127.0.0.1:0\npolicies: [policy.yaml]\nservers:\n  " + server +
		": {http: {url: \"http://127.0.0.1:1/mcp\", headers: {A: \"${env:HERE_SECRET}\"}}}\n"
}

func newLocalConfigFolder(t *testing.T) (dir, home string) {
	t.Helper()
	dir = stack.WriteFolder(t, map[string]string{"sluice.yaml": localConfig("first"), "policy.yaml": goodPolicy})
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir, t.TempDir()
}

// `sluice up` shows the configuration in its working directory and asks the user whether to use it. It asks once for
// each content of the file. The mesh runs with the content that was shown, even if the file changes before the user
// answers.
func TestUp_AsksOnceForTheConfigurationOfItsFolder(t *testing.T) {
	t.Setenv("HERE_SECRET", "a-value-that-is-secret")
	dir, home := newLocalConfigFolder(t)
	file := filepath.Join(dir, "sluice.yaml")

	no := startUpAtTerminal(t, dir, home)
	no.awaitText(t, agreeQuestion)
	no.typeText(t, "no\n")
	<-no.ended
	if code := no.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(no.screen.String(), "nothing was started") || strings.Contains(no.screen.String(), upMessage) {
		t.Errorf("after the answer no the exit code is %d:\n%s", code, no.screen.String())
	}
	if _, err := os.Stat(filepath.Join(dir, ".sluice")); err == nil {
		t.Error("after the answer no the data folder exists")
	}

	race := startUpAtTerminal(t, dir, home)
	race.awaitText(t, agreeQuestion)
	for _, want := range []string{"server    first: http://127.0.0.1:1/mcp", "secret    env HERE_SECRET"} {
		if !strings.Contains(race.screen.String(), want) {
			t.Errorf("%q is not shown:\n%s", want, race.screen.String())
		}
	}
	stack.WriteFile(t, file, localConfig("second"))
	race.typeText(t, "yes\n")
	race.awaitText(t, upMessage)
	if text := race.screen.String(); !strings.Contains(text, "/mcp/first") || strings.Contains(text, "/mcp/second") || strings.Contains(text, "a-value-that-is-secret") {
		t.Errorf("the mesh does not run with the content that was shown:\n%s", text)
	}
	race.stop()

	changed := startUpAtTerminal(t, dir, home)
	if said := changed.awaitText(t, agreeQuestion, upMessage); said != agreeQuestion {
		t.Errorf("the command does not ask for another content:\n%s", changed.screen.String())
	}
	changed.stop()

	stack.WriteFile(t, file, localConfig("first"))
	again := startUpAtTerminal(t, dir, home)
	if said := again.awaitText(t, agreeQuestion, upMessage); said != upMessage {
		t.Errorf("the command asks again for a content that the user has agreed to:\n%s", again.screen.String())
	}
	again.stop()

	elsewhere, _ := newLocalConfigFolder(t)
	moved := startUpAtTerminal(t, elsewhere, home)
	if said := moved.awaitText(t, agreeQuestion, upMessage); said != agreeQuestion {
		t.Errorf("the command does not ask for the same content in another folder:\n%s", moved.screen.String())
	}
}

// `sluice up` does not use the configuration in its working directory if there is no terminal, or if other users may
// write to the file or the directory. The error names the file and the reason.
func TestUp_RefusesTheConfigurationOfItsFolder(t *testing.T) {
	t.Setenv("HERE_SECRET", "x")
	for name, c := range map[string]struct {
		change func(dir string) error
		want   string
		check  int
	}{
		"no terminal":       {func(string) error { return nil }, "there is no terminal to ask you at: name it with --config sluice.yaml", 0},
		"a shared folder":   {func(dir string) error { return os.Chmod(dir, 0o777) }, "sluice.yaml in this folder is not used, because other users may write to the folder", 1},
		"a file of a group": {func(dir string) error { return os.Chmod(filepath.Join(dir, "sluice.yaml"), 0o660) }, "because other users may write to it", 1},
		"a link":            {replaceWithLink, "because it is a symbolic link", 1},
		"a file that is wrong": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "sluice.yaml"), []byte("lisen: x"), 0o600)
		}, `sluice.yaml:1:1: unknown key "lisen"`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir, home := newLocalConfigFolder(t)
			if err := c.change(dir); err != nil {
				t.Fatal(err)
			}
			env := []string{"HOME=" + home}
			up := stack.Run(t, stack.Command{Args: []string{"up"}, Dir: dir, Env: env, Stdin: "yes\n"})
			stack.CheckCommand(t, up, 1, up.Stderr, c.want)
			check := stack.Run(t, stack.Command{Args: []string{"config", "check"}, Dir: dir, Env: env})
			if check.Code != c.check || c.check == 1 && !strings.Contains(check.Stderr, c.want) || c.check == 0 && !strings.Contains(check.Stdout, filepath.Join(dir, "sluice.yaml")) {
				t.Errorf("config check: %+v", check)
			}
			if _, err := os.Stat(filepath.Join(dir, ".sluice")); err == nil {
				t.Error("the data folder exists")
			}
		})
	}
}

func replaceWithLink(dir string) error {
	if err := os.Rename(filepath.Join(dir, "sluice.yaml"), filepath.Join(dir, "real.yaml")); err != nil {
		return err
	}
	return os.Symlink("real.yaml", filepath.Join(dir, "sluice.yaml"))
}

// Commands that send a token, or that a client starts, ignore the configuration in the working directory. The test
// checks that they do not connect to the addresses in that file.
func TestCommandsThatSendTokens_IgnoreTheConfigurationOfTheirFolder(t *testing.T) {
	t.Parallel()
	trap, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	caught := make(chan struct{}, 100)
	go func() {
		for {
			conn, err := trap.Accept()
			if err != nil {
				return
			}
			caught <- struct{}{}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = trap.Close() })
	dir := stack.WriteFolder(t, map[string]string{"sluice.yaml": fmt.Sprintf("listen: %s\ngrpc: %[1]s\n", trap.Addr())})
	for _, args := range [][]string{
		{"stdio"}, {"stdio", "--server", "demo"}, {"call", "demo", "list_notes"}, {"tools"}, {"tools", "demo"}, {"doctor"}, {"status"},
		{"decisions", "tail"}, {"approvals", "list"}, {"approvals", "approve", "x"}, {"catalog", "servers"}, {"agents", "list"}, {"policy", "explain", "--server", "a", "--tool", "b"},
		{"policy", "suggest", "--server", "a"}, {"stdio", "--help"},
	} {
		stack.Run(t, stack.Command{Args: args, Dir: dir, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}, Stdin: "{}\n"})
		select {
		case <-caught:
			t.Errorf("%v reached the address of the folder's configuration", args)
		case <-time.After(time.Millisecond):
		}
	}
}

// `sluice stdio --help` prints client configurations. The test checks that they work in any directory without
// environment variables.
func TestStdio_HelpPrintsWhatWorksFromAnyFolder(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, dir string, args ...string) {
		t.Helper()
		help := stack.Run(t, stack.Command{Args: append([]string{"stdio", "--help"}, args...), Dir: dir})
		stack.CheckCommand(t, help, 0, help.Stdout, "These entries are for the mesh of this folder")
		entries := regexp.MustCompile(`(?m)^  (\{"mcpServers": .*\})$`).FindAllStringSubmatch(help.Stdout, -1)
		if len(entries) != 2 {
			t.Fatalf("%d entries in\n%s", len(entries), help.Stdout)
		}
		for _, entry := range entries {
			var pasted struct {
				Servers map[string]struct {
					Command string
					Args    []string
				} `json:"mcpServers"`
			}
			if err := json.Unmarshal([]byte(entry[1]), &pasted); err != nil {
				t.Fatal(err)
			}
			for name, server := range pasted.Servers {
				cmd := exec.CommandContext(t.Context(), server.Command, server.Args...)
				cmd.Dir, cmd.Env = t.TempDir(), []string{}
				cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}` + "\n")
				if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), `"serverInfo"`) {
					t.Errorf("%s: %v\n%s", name, err, out)
				}
			}
		}
	}
	t.Run("a mesh with a configuration", func(t *testing.T) {
		t.Parallel()
		d := newCLIMesh(t)
		run(t, d.Dir, "--config", "sluice.yaml")
		run(t, d.Dir) // the command uses the configuration file, because only the caller can write to it
	})
	t.Run("no mesh", func(t *testing.T) {
		t.Parallel()
		help := stack.Run(t, stack.Command{Args: []string{"stdio", "--help"}, Dir: t.TempDir()})
		stack.CheckCommand(t, help, 0, help.Stdout, "No mesh has run in this folder")
	})
}

// A repository contains a sluice.yaml with a command for a secret. `config check` does not run it before the person has
// agreed to the file.
func TestConfigCheck_RunsNoCommandOfARepository(t *testing.T) {
	t.Parallel()
	dir, home := newLocalConfigFolder(t)
	stack.WriteFile(t, filepath.Join(dir, "sluice.yaml"), "secrets: {commands: {x: {command: [touch, ran]}}}\nauth: {tokens: [{name: a, token: \"${cmd:x}\", role: agent}]}\n")
	ran := stack.Run(t, stack.Command{Args: []string{"config", "check"}, Dir: dir, Env: []string{"HOME=" + home, "XDG_CONFIG_HOME=" + filepath.Join(home, ".config")}})
	if ran.Code == 0 || !strings.Contains(ran.Stderr, "you have not agreed to its content") {
		t.Errorf("%+v", ran)
	}
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("the command has run")
	}
}
