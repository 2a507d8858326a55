//go:build !linux

package keychain

// session has no state, because a request to the keychains of macOS and Windows can't be cancelled.
type session struct{}

func (*session) open() error { return nil }

func (*session) close() {}
