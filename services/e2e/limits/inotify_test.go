//go:build linux

package limits_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// instances returns how many descriptors of inotify instances a process has open.
func instances(pid int) int {
	n := 0
	links, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && strings.Contains(to, "inotify") {
			n++
		}
	}
	return n
}

// Class N: the gateway watches all programs with one inotify instance, and a program can't use up the instances of
// others.
func TestX20Limits_ProgramTakesFewInotifyInstances(t *testing.T) {
	t.Parallel()
	if os.Getenv("SLUICE_TEST_NO_SANDBOX") != "" {
		t.Skip("no namespaces can be made here")
	}
	m := meshOf(t, "", "", "")
	if got := m.attack("inotify").Text(t); !strings.Contains(got, "32 instances") {
		t.Errorf("it says %s", got)
	}
	m.othersGoOn()
	if n := instances(m.PID()); n != 1 {
		t.Errorf("the mesh has %d inotify instances, not 1", n)
	}
}
