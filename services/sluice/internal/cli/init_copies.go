package cli

import (
	"io/fs"
	"path/filepath"
)

// printCopies prints the size of the packages that the mesh has installed for the new servers.
func (s *setup) printCopies() {
	programs := filepath.Join(s.paths.Data, "gateway", "programs")
	var size int64
	for _, server := range s.plan.New() {
		size += sizeOf(filepath.Join(programs, server.Name))
	}
	const megabyte = 1e6
	if size >= megabyte {
		s.printf("The mesh has its own copies of these servers' packages: %d MB in %s. A copy that you remove is installed again when its server starts.", size/megabyte, s.shownPath(programs))
	}
}

// sizeOf returns the number of bytes in the files in a directory, or 0 if the directory does not exist.
func sizeOf(dir string) (size int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // the size is only shown
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return nil
	})
	return size
}
