// Package clientsetup makes clients reach their MCP servers through a person's own mesh, and can undo these changes. It
// finds the servers in the clients' configuration files, plans the mesh's configuration, and edits the files. It does
// not start programs and does not ask questions. `sluice init` does both.
package clientsetup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
	"github.com/sluice-mesh/sluice/services/sluice/internal/regularfile"
)

// A Found is an existing configuration file of a client.
type Found struct {
	File clientconfig.File
	// Data is the content of the file. Entries contains the MCP servers in the file. Both are empty if Err is set.
	Data    []byte
	Entries []clientconfig.Entry
	// Err is the reason why the file can't be read or parsed.
	Err error
}

// Scan reads the files of clients, and skips files that don't exist. If project is not empty, Scan also reads the files
// in this directory.
func Scan(sys clientconfig.System, clients []clientconfig.Client, project string) []Found {
	var out []Found
	seen := make(map[string]bool)
	for _, c := range clients {
		for _, f := range c.Files(sys, project) {
			for _, path := range pathsOf(f) {
				f.Path, f.Pattern = path, false
				// Claude Code and Copilot CLI read the same project file, which must be edited only once.
				if found, exists := read(f); exists && !seen[path] {
					out, seen[path] = append(out, found), true
				}
			}
		}
	}
	return out
}

// pathsOf returns the path of a file, or the paths that match its pattern, sorted.
func pathsOf(f clientconfig.File) []string {
	if !f.Pattern {
		return []string{f.Path}
	}
	entries, _ := os.ReadDir(filepath.Dir(f.Path)) // a directory that can't be read has no files for this user
	var out []string
	for _, e := range entries {
		if ok, _ := filepath.Match(filepath.Base(f.Path), e.Name()); ok { // the patterns are valid
			out = append(out, filepath.Join(filepath.Dir(f.Path), e.Name()))
		}
	}
	return out
}

func read(f clientconfig.File) (_ Found, exists bool) {
	data, err := ReadFile(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return Found{}, false
	}
	if err != nil {
		return Found{File: f, Err: err}, true
	}
	entries, err := f.Entries(data)
	if err != nil {
		return Found{File: f, Err: err}, true
	}
	return Found{File: f, Data: data, Entries: entries}, true
}

// ReadFile reads a regular file of at most [configedit.MaxBytes].
func ReadFile(path string) ([]byte, error) { return regularfile.Read(path, configedit.MaxBytes) }

// Projects returns the sorted project directories in the user's files. For example, Claude Code records in the user's
// file in which projects it was used.
func Projects(found []Found) []string {
	var out []string
	for _, f := range found {
		for _, dir := range f.File.Projects(f.Data) {
			if info, err := os.Stat(dir); err == nil && info.IsDir() && filepath.IsAbs(dir) {
				out = append(out, dir)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
