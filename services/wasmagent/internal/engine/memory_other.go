//go:build !unix

package engine

func reserve(bytes int64) []byte { return make([]byte, bytes) }

// grow does nothing, because reserve has allocated all of the memory.
func grow([]byte, int64, int64) bool { return true }

func release([]byte) {}
