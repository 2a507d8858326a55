//go:build !linux

package npx

// syncFileSystem does nothing, because this operating system cannot write the changes of a whole file system to the
// disk.
func syncFileSystem(string) error { return nil }
