//go:build unix

package engine

import "golang.org/x/sys/unix"

// reserve returns an inaccessible address range of the given size, or nil if the operating system refuses to reserve
// one.
func reserve(bytes int64) []byte {
	if bytes == 0 {
		return nil
	}
	mapped, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil
	}
	return mapped
}

// grow makes the bytes from the first offset to the second, which is exclusive, readable and writable. It returns false
// if the operating system has no memory left.
func grow(mapped []byte, from, to int64) bool {
	return to <= from || unix.Mprotect(mapped[from:to], unix.PROT_READ|unix.PROT_WRITE) == nil
}

func release(mapped []byte) {
	if mapped != nil {
		_ = unix.Munmap(mapped)
	}
}
