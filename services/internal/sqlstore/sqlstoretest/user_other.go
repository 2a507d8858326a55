//go:build !unix

package sqlstoretest

import "syscall"

// unprivileged has nothing to change where there is no root.
func unprivileged(string) (*syscall.SysProcAttr, error) {
	return nil, nil //nolint:nilnil // as where the user is another one already
}
