//go:build !unix

package stdio

import (
	"errors"
	"os"
)

// writePipe returns an error, because no processes are started on this system.
func writePipe(*os.File, []byte, func(func() (int, error)) (int, error)) (int, error) {
	return 0, errors.ErrUnsupported
}
