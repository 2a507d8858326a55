package clientsetup

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// RemoveLeftovers removes the temporary files that a killed `init` left next to clients' files. They may contain
// secrets.
func (s *State) RemoveLeftovers(ctx context.Context) error {
	done := make(map[string]bool)
	for _, change := range s.Files {
		if done[change.Path] {
			continue
		}
		done[change.Path] = true
		if err := s.writer(change).RemoveLeftovers(ctx, change.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// temporarySuffix matches the suffix that [pki.WriteFile] appends to the name of a temporary file.
var temporarySuffix = regexp.MustCompile(`^-[0-9]+$`)

// RemoveTemporary removes the temporary files that killed processes left next to a file of the mesh.
func RemoveTemporary(path string) error {
	entries, err := os.ReadDir(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		suffix, found := strings.CutPrefix(e.Name(), "."+filepath.Base(path))
		if !found || !e.Type().IsRegular() || !temporarySuffix.MatchString(suffix) {
			continue
		}
		if err := os.Remove(filepath.Join(filepath.Dir(path), e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
