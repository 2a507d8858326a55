//go:build unix

package engine

import "golang.org/x/sys/unix"

// reserve returns a place of so many bytes that nothing can be written into; nil where
// there is none.
func reserve(bytes int64) []byte {
	if bytes == 0 {
		return nil
	}
	place, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil
	}
	return place
}

// grow makes what is between two sizes memory. It reports whether the system had so much.
func grow(place []byte, from, to int64) bool {
	return to <= from || unix.Mprotect(place[from:to], unix.PROT_READ|unix.PROT_WRITE) == nil
}

func release(place []byte) {
	if place != nil {
		_ = unix.Munmap(place)
	}
}
