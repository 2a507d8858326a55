package npx

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Bin is the directory, relative to an npm project, in which npm creates links to the packages' programs.
const Bin = "node_modules/.bin"

// maxManifest limits the size of a package.json, in bytes.
const maxManifest = 8 << 20

// manifest contains those members of a package.json that the gateway reads.
type manifest struct {
	Name         string            `json:"name"`
	Version      string            `json:"version"`
	Dependencies map[string]string `json:"dependencies"`
	Bin          any               `json:"bin"`
	Directories  struct {
		Bin string `json:"bin"`
	} `json:"directories"`
}

// program returns the path of a program, relative to the project, and the version of the package that contains the
// program. The project must have installed exactly one package directly. If the package has no program with the given
// name, the path is empty. In that case, npx would look for the program in PATH.
func program(project *os.Root, named string) (path, version string, err error) {
	own, err := readManifest(project, "package.json")
	if err != nil {
		return "", "", err
	}
	if len(own.Dependencies) != 1 {
		return "", "", fmt.Errorf("npm has installed %d packages, not one", len(own.Dependencies))
	}
	for name := range maps.Keys(own.Dependencies) {
		m, err := readManifest(project, filepath.Join("node_modules", name, "package.json"))
		if err != nil {
			return "", "", err
		}
		version = m.Version
		if named == "" {
			if named, err = m.chooseProgram(project, name); err != nil {
				return "", "", err
			}
			path, err = linkedProgram(project, named)
			return path, version, err
		}
	}
	path, err = linkedProgram(project, named)
	if errors.Is(err, fs.ErrNotExist) {
		return "", version, nil
	}
	return path, version, err
}

func readManifest(project *os.Root, path string) (m manifest, err error) {
	info, err := project.Stat(path) // os.Root follows no link that leads out of the project
	if err != nil {
		return m, fmt.Errorf("read %s: %w", path, err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxManifest {
		return m, fmt.Errorf("read %s: it is not a file of at most %d bytes", path, maxManifest)
	}
	raw, err := project.ReadFile(path)
	if err != nil {
		return m, fmt.Errorf("read %s: %w", path, err)
	}
	// Duplicate keys and invalid UTF-8 are accepted, because npm accepts them, too.
	if err := json.Unmarshal(raw, &m, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return m, fmt.Errorf("read %s: %w", path, err)
	}
	return m, nil
}

// chooseProgram returns the name of the program that npx runs for a package. This is the package's only program or, if
// there are several, the program that has the name of the package.
func (m *manifest) chooseProgram(project *os.Root, dependency string) (string, error) {
	called := m.Name[strings.LastIndex(m.Name, "/")+1:]
	programs := make(map[string]string)
	switch bin := m.Bin.(type) {
	case string:
		programs[called] = bin
	case map[string]any:
		for name, path := range bin {
			if text, ok := path.(string); ok {
				programs[name] = text
			}
		}
	case nil:
		if dir := m.Directories.Bin; dir != "" && filepath.IsLocal(dir) {
			entries, _ := fs.ReadDir(project.FS(), filepath.ToSlash(filepath.Join("node_modules", dependency, dir)))
			for _, entry := range entries {
				programs[entry.Name()] = entry.Name()
			}
		}
	}
	names := slices.Sorted(maps.Keys(programs))
	paths := slices.Sorted(maps.Values(programs))
	switch {
	case len(names) == 0:
		return "", errors.New("the package has no program to run (bin in its package.json)")
	case len(slices.Compact(paths)) == 1:
		return names[0], nil
	case programs[called] != "":
		return called, nil
	default:
		return "", fmt.Errorf("the package has several programs, and none is called %s: name one by --package=PACKAGE PROGRAM; it has %s", called, strings.Join(names, ", "))
	}
}

// linkedProgram returns the path of a program relative to the project. The program's file must be inside the project,
// because the server's process cannot write there.
func linkedProgram(project *os.Root, name string) (string, error) {
	path := filepath.Join(Bin, name)
	if !filepath.IsLocal(name) || strings.ContainsRune(name, '/') {
		return "", fmt.Errorf("%q is not the name of a program", name)
	}
	info, err := project.Stat(path)
	if err != nil {
		return "", fmt.Errorf("find the program %s: %w", name, err)
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("the program %s can't be executed", name)
	}
	return path, nil
}
