//go:build !linux

package atomicfile

import "os"

// checkACL does nothing, because access control lists do not change the meaning of the mode on this system.
func (f *file) checkACL() error { return nil }

func removeACL(*os.File) error { return nil }
