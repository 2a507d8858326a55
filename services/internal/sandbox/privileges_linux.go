package sandbox

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// keptCapabilities contains the capabilities for files and users that a program keeps if root runs it. None of them can
// make hidden paths visible.
const keptCapabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID

// dropPrivileges removes all privileges except keptCapabilities from this thread and from the programs that it starts.
// It also prevents them from gaining privileges later, and disables core dumps, because these would contain memory.
func dropPrivileges(asRoot bool) error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core dumps: %w", err)
	}
	// Programs that the launcher starts must not be able to trace the launcher or read its memory.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid tracing: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges: %w", err)
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("give up privileges: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have, less [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return fmt.Errorf("give up privileges: %w", err)
	}
	if have[0].Effective&(1<<unix.CAP_SETPCAP) != 0 {
		for cap := range uintptr(64) {
			if !asRoot || cap > 31 || keptCapabilities&(1<<cap) == 0 {
				_ = unix.Prctl(unix.PR_CAPBSET_DROP, cap, 0, 0, 0) // fails for privileges that this kernel does not have
			}
		}
	}
	if asRoot {
		less[0].Effective = have[0].Effective & keptCapabilities
		less[0].Permitted = have[0].Permitted & keptCapabilities
	}
	if err := unix.Capset(&header, &less[0]); err != nil {
		return fmt.Errorf("give up privileges: %w", err)
	}
	return nil
}
