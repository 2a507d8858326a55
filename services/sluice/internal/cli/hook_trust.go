package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// readByClient returns the entries in a file. If the client does not read the file, readByClient omits the entries that
// go through the mesh, because such an entry must not cause a call to be allowed. For example, Codex reads a project's
// file only if the person trusts the project. It keeps all other entries, because they can only cause calls to be
// denied.
func readByClient(sys clientconfig.System, f clientconfig.File, entries []clientconfig.Entry) ([]clientconfig.Entry, error) {
	isWrapped := func(e clientconfig.Entry) bool { return e.Wrapped }
	if f.Client.ID != "codex" || f.Scope != clientconfig.Project || !slices.ContainsFunc(entries, isWrapped) {
		return entries, nil
	}
	trusted, err := codexTrusts(sys, f)
	if err != nil || trusted {
		return entries, err
	}
	return slices.DeleteFunc(entries, isWrapped), nil
}

// codexTrusts reports whether the person trusts the project of a file, or a parent directory of the project.
func codexTrusts(sys clientconfig.System, f clientconfig.File) (bool, error) {
	user := f.Client.Files(sys, "")[0]
	raw, err := clientsetup.ReadFile(user.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the projects that Codex trusts: %w", err)
	}
	root, err := configedit.Parse(user.Layout, raw)
	if err != nil {
		return false, fmt.Errorf("read the projects that Codex trusts in %s: %w", user.Path, err)
	}
	dirs := parents(f.Project)
	if real, err := filepath.EvalSymlinks(f.Project); err == nil {
		dirs = append(dirs, parents(real)...)
	}
	return slices.ContainsFunc(dirs, func(dir string) bool {
		level := root.Get("projects", dir, "trust_level")
		return level != nil && level.Text == "trusted"
	}), nil
}
