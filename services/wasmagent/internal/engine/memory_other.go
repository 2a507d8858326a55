//go:build !unix

package engine

// reserve returns a place of so many bytes.
func reserve(bytes int64) []byte { return make([]byte, bytes) }

// grow is done: all of the place is memory.
func grow([]byte, int64, int64) bool { return true }

func release([]byte) {}
