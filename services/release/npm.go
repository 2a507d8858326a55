package main

import (
	"archive/tar"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// npmName is the name of the npm package that contains the launcher. Each platform has its own package, as with
// esbuild.
const npmName = "@sluice-mesh/sluice"

//go:embed launcher.js
var launcher []byte

// platform is an operating system and an architecture. goos and goarch are their names in Go, and os and cpu are their
// names in npm.
type platform struct{ goos, goarch, os, cpu string }

var platforms = []platform{
	{"linux", "amd64", "linux", "x64"},
	{"linux", "arm64", "linux", "arm64"},
	{"darwin", "amd64", "darwin", "x64"},
	{"darwin", "arm64", "darwin", "arm64"},
	{"windows", "amd64", "win32", "x64"},
	{"windows", "arm64", "win32", "arm64"},
}

func (p platform) npmName() string { return npmName + "-" + p.os + "-" + p.cpu }

// program returns the path of the program in the platform's package.
func (p platform) program() string {
	if p.os == "win32" {
		return "bin/sluice.exe"
	}
	return "bin/sluice"
}

// packed is a file in an npm package.
type packed struct {
	name    string
	content []byte
	mode    int64
}

// manifest is the package.json of an npm package. No package has a script that runs during the installation.
type manifest struct {
	Name                 string            `json:"name"`
	Version              string            `json:"version"`
	Description          string            `json:"description"`
	License              string            `json:"license"`
	Repository           string            `json:"repository"`
	Bin                  map[string]string `json:"bin,omitempty"`
	OS                   []string          `json:"os,omitempty"`
	CPU                  []string          `json:"cpu,omitempty"`
	OptionalDependencies map[string]string `json:"optionalDependencies,omitempty"`
}

func newManifest(name, version string) manifest {
	return manifest{
		Name: name, Version: version, Description: "Policy mesh for the Model Context Protocol", License: "Apache-2.0",
		Repository: "https://" + repository,
	}
}

// launcherManifest returns the manifest of the package with the launcher.
func launcherManifest(version string) manifest {
	m := newManifest(npmName, version)
	m.Bin, m.OptionalDependencies = map[string]string{"sluice": "launcher.js"}, make(map[string]string)
	for _, p := range platforms {
		m.OptionalDependencies[p.npmName()] = version
	}
	return m
}

// writeNPM writes the npm packages into directory. programs maps "GOOS/GOARCH" to the paths of the built programs.
func writeNPM(directory, version string, at time.Time, programs map[string]string) error {
	file := filepath.Join(directory, "sluice-"+version+".tgz")
	if err := pack(file, at, launcherManifest(version), packed{"launcher.js", launcher, 0o755}); err != nil {
		return err
	}
	for _, p := range platforms {
		path, ok := programs[p.goos+"/"+p.goarch]
		if !ok {
			return fmt.Errorf("there is no program for %s/%s", p.goos, p.goarch)
		}
		program, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		m := newManifest(p.npmName(), version)
		m.OS, m.CPU = []string{p.os}, []string{p.cpu}
		file := filepath.Join(directory, fmt.Sprintf("sluice-%s-%s-%s.tgz", p.os, p.cpu, version))
		if err := pack(file, at, m, packed{p.program(), program, 0o755}); err != nil {
			return err
		}
	}
	return nil
}

// pack writes an npm package. Packages with equal content consist of equal bytes.
func pack(path string, at time.Time, m manifest, files ...packed) (err error) {
	description, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	out, err := os.Create(path) //nolint:gosec // a path of the person who releases
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	compressed, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(compressed)
	for _, f := range append([]packed{{"package.json", description, 0o644}}, files...) {
		header := &tar.Header{Name: "package/" + f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: at}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(f.content); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}
