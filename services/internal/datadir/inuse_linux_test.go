package datadir_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/datadir"
)

func TestInUse_WhileAProcessUsesTheFolder(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(dir string) *exec.Cmd{
		"works in it":   func(dir string) *exec.Cmd { return inShell(dir, "") },
		"works below":   func(dir string) *exec.Cmd { return inShell(filepath.Join(dir, "sub"), "") },
		"has a file":    func(dir string) *exec.Cmd { return inShell("/", "exec 3>"+dir+"/file; ") },
		"has an option": func(dir string) *exec.Cmd { return inShell("/", "", filepath.Join(dir, "file")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "folder")
			for _, path := range []string{filepath.Join(dir, "sub"), dir + "-other"} {
				if err := os.MkdirAll(path, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if datadir.InUse(dir) {
				t.Error("the folder is in use before a process uses it")
			}
			end := startAndWait(t, start(dir))
			if !datadir.InUse(dir) || datadir.InUse(dir+"-other") || datadir.InUse(dir+"-none") {
				t.Error("the folder is not in use, or another folder is")
			}
			end()
			if datadir.InUse(dir) {
				t.Error("the folder is in use after the process has ended")
			}
		})
	}
}

// startAndWait starts a command and waits until the command has printed a line. The returned function closes the
// command's standard input and waits until the command has ended.
func startAndWait(t *testing.T, c *exec.Cmd) (end func()) {
	t.Helper()
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
		_ = c.Wait() // its status does not matter
	}
}

// inShell returns a command that runs a shell in dir. The shell executes the command that the parameter first contains.
// Then it prints a line and waits until its standard input ends.
func inShell(dir, first string, args ...string) *exec.Cmd {
	c := exec.Command("sh", append([]string{"-c", first + "echo there; read line", "sh"}, args...)...)
	c.Dir = dir
	return c
}
