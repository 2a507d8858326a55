//go:build linux

package limits_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// inotifyInstances returns the number of a process's open inotify instances.
func inotifyInstances(pid int) int {
	n := 0
	links, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && strings.Contains(to, "inotify") {
			n++
		}
	}
	return n
}

// Case X20. The gateway watches all stdio servers with one inotify instance. A stdio server can't use up the instances
// that other programs need.
func TestLimits_ProgramUsesFewInotifyInstances(t *testing.T) {
	t.Parallel()
	if os.Getenv("SLUICE_TEST_NO_SANDBOX") != "" {
		t.Skip("SLUICE_TEST_NO_SANDBOX is set")
	}
	m := startLimitedMesh(t, "", "", "")
	if got := m.attack("inotify").Text(t); !strings.Contains(got, "32 instances") {
		t.Errorf("the attack returns %s", got)
	}
	m.checkOthersServe()
	if n := inotifyInstances(m.PID()); n != 1 {
		t.Errorf("the mesh has %d inotify instances, want 1", n)
	}
}
