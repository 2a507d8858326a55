//go:build unix

package sqlstoretest

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// unprivileged returns attributes that run a command as another user if the current user is root, because PostgreSQL
// does not run as root. In that case it also makes the other user the owner of dir.
func unprivileged(dir string) (*syscall.SysProcAttr, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // nil means that nothing changes
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, os.Chown(dir, int(uid), int(gid))
	}
	return nil, fmt.Errorf("PostgreSQL does not run as root, and there is no user postgres or nobody: run these tests as another user")
}
