package arch_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// retest runs retest.sh with output as the output of `go test`. A script that replaces `go` writes its arguments to a
// file, and fails if stillFail is true. retest returns these arguments.
func retest(t *testing.T, limit, output string, stillFail bool) (arguments string, err error) {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"$*\" >'" + dir + "/arguments'\n"
	if stillFail {
		script += "exit 1\n"
	}
	for name, text := range map[string]string{"go": script, "log": output} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "../../e2e/retest.sh", limit, filepath.Join(dir, "log"), "-race")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	err = cmd.Run()
	raw, _ := os.ReadFile(filepath.Join(dir, "arguments"))
	return strings.TrimSpace(string(raw)), err
}

const failedOutput = "ok  \texample.com/a\t1.2s\n--- FAIL: TestX (0.1s)\nFAIL\nFAIL\texample.com/b\t3.4s\nFAIL\n"

func TestRetest_TestsFailedPackagesOnceMore(t *testing.T) {
	t.Parallel()
	if arguments, err := retest(t, "1", failedOutput, false); err != nil || arguments != "test -p 1 -count=1 -race example.com/b" {
		t.Errorf("go is called with %q: %v", arguments, err)
	}
	if _, err := retest(t, "1", failedOutput, true); err == nil {
		t.Error("a package that fails again does not fail the run")
	}
}

func TestRetest_FailsAtOnceForOtherFailures(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ limit, output string }{
		"retries are off":        {"0", failedOutput},
		"too many packages":      {"1", failedOutput + "FAIL\texample.com/c\t3.4s\n"},
		"a data race":            {"1", "WARNING: DATA RACE\n" + failedOutput},
		"a panic":                {"1", "panic: runtime error\n" + failedOutput},
		"a package is not built": {"1", failedOutput + "FAIL\texample.com/c [build failed]\n"},
		"no failed package":      {"1", "ok  \texample.com/a\t1.2s\n"},
	} {
		if arguments, err := retest(t, c.limit, c.output, false); err == nil || arguments != "" {
			t.Errorf("%s: go is called with %q: %v", name, arguments, err)
		}
	}
}
