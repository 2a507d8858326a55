package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const repository = "github.com/sluice-mesh/sluice"

// publishedModules lists the directories of the modules that `go install` needs.
var publishedModules = []string{"gen", "services"}

// writeModules writes the published modules of a commit into directory.
func writeModules(version, commit, directory string) error {
	out, err := exec.Command("git", "rev-parse", "--path-format=absolute", "--git-common-dir").Output() //nolint:noctx // it returns at once
	if err != nil {
		return fmt.Errorf("find the repository: %w", err)
	}
	top := filepath.Dir(strings.TrimSpace(string(out))) // package zip does not know the .git file of a worktree
	for _, name := range publishedModules {
		if err := writeModule(top, name, version, commit, directory); err != nil {
			return fmt.Errorf("write the module %s: %w", name, err)
		}
	}
	return nil
}

func writeModule(top, name, version, commit, directory string) (err error) {
	m := module.Version{Path: repository + "/" + name, Version: version}
	base := filepath.Join(directory, filepath.FromSlash(m.Path), "@v")
	if err := os.MkdirAll(base, 0o755); err != nil { //nolint:gosec // the files are public
		return err
	}
	manifest, err := exec.Command("git", "-C", top, "show", commit+":"+name+"/go.mod").Output() //nolint:gosec,noctx // arguments of the person who releases
	if err != nil {
		return fmt.Errorf("read go.mod of %s: %w", commit, err)
	}
	info, err := json.Marshal(map[string]string{"Version": version})
	if err != nil {
		return err
	}
	for file, content := range map[string][]byte{"list": []byte(version + "\n"), version + ".mod": manifest, version + ".info": info} {
		if err := os.WriteFile(filepath.Join(base, file), content, 0o644); err != nil { //nolint:gosec // the files are public
			return err
		}
	}
	file, err := os.Create(filepath.Join(base, version+".zip")) //nolint:gosec // a path of the person who releases
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return zip.CreateFromVCS(file, m, top, commit, name)
}
