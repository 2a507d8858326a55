package personal_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// fakeSystemctl records its arguments, and runs the command of the systemd unit.
const fakeSystemctl = `#!/bin/sh
echo "$2 $3" >> "$HOME/systemctl.log"
alive() { [ -f "$HOME/pid" ] && kill -0 "$(cat "$HOME/pid")" 2>/dev/null; }
end() { if alive; then kill "$(cat "$HOME/pid")"; while alive; do sleep 0.01; done; fi; rm -f "$HOME/pid"; }
begin() {
	alive && return
	line=$(sed -n 's/^ExecStart=":/"/p' "$HOME/.config/systemd/user/sluice.service")
	eval "setsid $line >\"$HOME/service.log\" 2>&1 & echo \$! >\"$HOME/pid\""
}
case "$2" in
restart) end; begin ;;
start) begin ;;
disable) end ;;
is-active) alive || exit 3 ;;
esac
exit 0
`

const unitPath = ".config/systemd/user/sluice.service"

// Installing the mesh as a service replaces the mesh that a client started on demand. The service can be removed again.
// The connected client keeps working with each of these meshes. fakeSystemctl stands in for systemd.
func TestService_ReplacesTheMeshOnDemandAndCanBeRemoved(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.write(cursorPath, cursorFile(h))
	h.write("bin/systemctl", fakeSystemctl)
	if err := os.Chmod(filepath.Join(h.dir, "bin/systemctl"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.env[0] = "PATH=" + filepath.Join(h.dir, "bin") + ":" + os.Getenv("PATH")
	h.check(0, []string{"init", "--yes", "cursor"})
	first, _ := h.mesh()
	client := h.connect(h.program, "stdio", "--server", "notes", "--as", "cursor")
	works := func(what string) {
		t.Helper()
		if text, isError := h.call(client, "list_notes", nil); isError {
			t.Errorf("%s, list_notes returns %s", what, text)
		}
	}
	h.check(0, []string{"doctor"}, "a client started it at", "no client has been connected for 30m0s")
	h.check(1, []string{"service", "status"}, "started by a client")
	h.check(1, []string{"service", "install"}, "ExecStart=", "add --yes")
	if _, err := os.Stat(filepath.Join(h.dir, unitPath)); err == nil {
		t.Error("install wrote the unit without consent")
	}

	h.check(0, []string{"service", "install", "--yes"}, "The service runs your mesh")
	second, _ := h.mesh()
	if pid := strings.TrimSpace(h.read("pid")); pid != strconv.Itoa(second.PID) || second.PID == first.PID {
		t.Errorf("the mesh is the process %d, and the service %s", second.PID, pid)
	}
	works("with the service")
	unit := h.read(unitPath)
	h.check(0, []string{"service", "install", "--yes"})
	if again, _ := h.mesh(); again.PID != second.PID || h.read(unitPath) != unit {
		t.Error("a second installation changed something")
	}
	h.check(0, []string{"service", "status"}, "runs in the process "+strconv.Itoa(second.PID))

	h.check(0, []string{"service", "remove"}, "is removed")
	if _, err := os.Stat(filepath.Join(h.dir, unitPath)); err == nil {
		t.Error("the unit is still there")
	}
	eventually.Holds(t, "the service ends", func() bool { _, found := h.mesh(); return !found })
	h.check(0, []string{"service", "remove"}, "no service")
	h.check(0, []string{"doctor"}, "it is not running")
	works("after the removal")
	if m, found := h.mesh(); !found || syscall.Kill(m.PID, 0) != nil {
		t.Errorf("the client started no mesh: %+v", m)
	}
	if calls := h.read("systemctl.log"); !strings.Contains(calls, "daemon-reload \nenable sluice.service\nrestart sluice.service\n") || !strings.Contains(calls, "disable --now\n") {
		t.Errorf("the calls of systemctl are\n%s", calls)
	}
}

func TestService_SaysWhenThereIsNoSession(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.write(cursorPath, cursorFile(h))
	h.check(1, []string{"service", "install", "--yes"}, "you have no mesh of your own yet")
	h.check(0, []string{"init", "--yes", "cursor"})
	h.write("bin/systemctl", "#!/bin/sh\necho 'Failed to connect to bus: No medium found' >&2\nexit 1\n")
	if err := os.Chmod(filepath.Join(h.dir, "bin/systemctl"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.env[0] = "PATH=" + filepath.Join(h.dir, "bin") + ":" + os.Getenv("PATH")
	h.check(1, []string{"service", "install", "--yes"}, "no systemd user instance", "No medium found", "sluice up --config")
	if _, err := os.Stat(filepath.Join(h.dir, unitPath)); err == nil {
		t.Error("install wrote the unit")
	}
}
