//go:build !linux

package atomicfile

import "errors"

// exchange is not supported.
func exchange(string, string) error { return errors.ErrUnsupported }
