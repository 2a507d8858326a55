//go:build !unix

package sqlstoretest

import "syscall"

// unprivileged returns nil, because this system has no root.
func unprivileged(string) (*syscall.SysProcAttr, error) {
	return nil, nil //nolint:nilnil // nil, as for users other than root on Unix
}
