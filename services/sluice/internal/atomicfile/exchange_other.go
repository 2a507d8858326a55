//go:build !linux

package atomicfile

import "errors"

// exchange returns errors.ErrUnsupported, because this system can't exchange files.
func exchange(string, string) error { return errors.ErrUnsupported }
