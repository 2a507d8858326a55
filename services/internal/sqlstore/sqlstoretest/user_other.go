//go:build !unix

package sqlstoretest

import "syscall"

// unprivileged does nothing, because there is no root.
func unprivileged(string) (*syscall.SysProcAttr, error) {
	return nil, nil //nolint:nilnil // as for other users than root
}
