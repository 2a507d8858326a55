//go:build !unix

package atomicfile

import "io/fs"

// checkOwner does nothing, because the mode and the owner of a file are those of its directory here.
func (f *file) checkOwner(fs.FileInfo) error { return nil }

// syncDir does nothing, because directories can't be synchronized here.
func syncDir(string) error { return nil }
