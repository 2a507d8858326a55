// Package regularfile reads files that other programs write, such as the settings of MCP clients and files of projects.
package regularfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// errNotRegular is the error for a directory, a pipe, a device or a socket.
var errNotRegular = errors.New("it is not a regular file")

// Read returns the content of a regular file. It follows symbolic links. It returns an error if the file is not regular
// or has more than maximum bytes.
func Read(path string, maximum int64) ([]byte, error) {
	info, err := os.Stat(path) // check before opening, because opening a device can have effects
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &os.PathError{Op: "read", Path: path, Err: errNotRegular}
	}
	// Another program may have replaced the file with a pipe. Without O_NONBLOCK, opening a pipe waits for a writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read
	if info, err = file.Stat(); err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &os.PathError{Op: "read", Path: path, Err: errNotRegular}
	}
	data, err := io.ReadAll(io.LimitReader(file, maximum+1))
	if err == nil && int64(len(data)) > maximum {
		return nil, &os.PathError{Op: "read", Path: path, Err: fmt.Errorf("it is larger than %d bytes", maximum)}
	}
	return data, err
}
