//go:build !linux

package datadir

// InUse returns false, because there is no portable way to find the processes that use a directory.
func InUse(string) bool { return false }
