//go:build !linux

package atomicfile

import "os"

// checkACL does nothing, because access control lists do not change the meaning of the mode here.
func (f *file) checkACL() error { return nil }

func removeACL(*os.File) error { return nil }
