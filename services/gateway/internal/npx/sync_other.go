//go:build !linux

package npx

// syncFileSystem does nothing, because this system has no system call for it.
func syncFileSystem(string) error { return nil }
