package main

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"text/template"
	"time"
)

var (
	//go:embed sluice.rb.tmpl
	formula string
	//go:embed Dockerfile.tmpl
	dockerfile string
)

// build describes the commit that was built.
type build struct {
	version, commit string
	date            time.Time
}

// artifact is an entry of goreleaser's artifacts.json.
type artifact struct {
	Name   string `json:"name"`
	Path   string `json:"path"`
	Goos   string `json:"goos"`
	Goarch string `json:"goarch"`
	Type   string `json:"type"`
}

// released lists the types of goreleaser artifacts that are part of the release.
var released = map[string]bool{"Archive": true, "Linux Package": true, "SBOM": true}

// digest is a file of the release, and its SHA-256 digest as 64 hexadecimal digits.
type digest struct{ Name, SHA256 string }

// writePackages writes the files of the release into dist/release.
func writePackages(dist string, b build) error {
	var built struct{ Version string }
	var artifacts []artifact
	if err := readJSON(filepath.Join(dist, "metadata.json"), &built); err != nil {
		return err
	}
	if built.Version != b.version {
		return fmt.Errorf("goreleaser built version %s, not %s", built.Version, b.version)
	}
	if err := readJSON(filepath.Join(dist, "artifacts.json"), &artifacts); err != nil {
		return err
	}
	to := filepath.Join(dist, "release")
	if err := os.MkdirAll(to, 0o755); err != nil { //nolint:gosec // the files are public
		return err
	}
	programs := make(map[string]string)
	for _, a := range artifacts {
		from := filepath.Join(filepath.Dir(filepath.Clean(dist)), a.Path) // goreleaser's paths begin with the name of dist
		if a.Type == "Binary" {
			programs[a.Goos+"/"+a.Goarch] = from
		}
		if released[a.Type] {
			if err := copyFile(from, filepath.Join(to, a.Name)); err != nil {
				return err
			}
		}
	}
	if err := writeNPM(to, b.version, b.date, programs); err != nil {
		return fmt.Errorf("write the npm packages: %w", err)
	}
	return writeDescriptions(to, b)
}

// writeDescriptions writes the files that contain digests of other files.
func writeDescriptions(to string, b build) error {
	digests, err := digestsOf(to)
	if err != nil {
		return err
	}
	sums := make(map[string]string)
	for _, d := range digests {
		sums[d.Name] = d.SHA256
	}
	values := map[string]any{"Version": b.version, "Repository": "https://" + repository, "Sums": sums}
	for name, text := range map[string]string{"sluice.rb": formula, "Dockerfile": dockerfile} {
		if err := execute(filepath.Join(to, name), text, values); err != nil {
			return err
		}
	}
	return writeDigests(to, b)
}

// writeDigests writes the checksums of all files and the provenance.
func writeDigests(to string, b build) error {
	digests, err := digestsOf(to)
	if err != nil {
		return err
	}
	var list bytes.Buffer
	for _, d := range digests {
		fmt.Fprintf(&list, "%s  %s\n", d.SHA256, d.Name)
	}
	if err := os.WriteFile(filepath.Join(to, "checksums.txt"), list.Bytes(), 0o644); err != nil { //nolint:gosec // public
		return err
	}
	sum := sha256.Sum256(list.Bytes())
	digests = append(digests, digest{"checksums.txt", hex.EncodeToString(sum[:])})
	statement, err := json.MarshalIndent(provenance(b, digests), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, "provenance.json"), append(statement, '\n'), 0o644) //nolint:gosec // public
}

// provenance returns an in-toto statement with SLSA provenance about the files.
func provenance(b build, files []digest) any {
	type object = map[string]any
	var subject []object
	for _, f := range files {
		subject = append(subject, object{"name": f.Name, "digest": object{"sha256": f.SHA256}})
	}
	return object{
		"_type": "https://in-toto.io/Statement/v1", "subject": subject, "predicateType": "https://slsa.dev/provenance/v1",
		"predicate": object{
			"buildDefinition": object{
				"buildType":          "https://" + repository + "/blob/main/docs/releases.md",
				"externalParameters": object{"version": b.version, "target": "make release"},
				"resolvedDependencies": []object{{
					"uri": "git+https://" + repository, "digest": object{"gitCommit": b.commit},
				}},
				"internalParameters": object{"go": runtime.Version()},
			},
			"runDetails": object{"builder": object{"id": "https://" + repository + "/blob/main/Makefile"}},
		},
	}
}

// digestsOf returns the digests of the files in a directory, sorted by name. It omits the files that contain the
// digests of all other files, because an earlier run might have left such files.
func digestsOf(directory string) (digests []digest, err error) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		switch e.Name() {
		case "checksums.txt", "provenance.json", "provenance.json.sig":
			continue
		}
		content, err := os.ReadFile(filepath.Join(directory, e.Name())) //nolint:gosec // a file of the release
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(content)
		digests = append(digests, digest{e.Name(), hex.EncodeToString(sum[:])})
	}
	return digests, nil
}

func execute(path, text string, values map[string]any) error {
	parsed, err := template.New(filepath.Base(path)).Option("missingkey=error").Parse(text)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := parsed.Execute(&out, values); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644) //nolint:gosec // public
}

func readJSON(path string, to any) error {
	raw, err := os.ReadFile(path) //nolint:gosec // a file that goreleaser wrote
	if err != nil {
		return fmt.Errorf("read what goreleaser built: %w", err)
	}
	if err := json.Unmarshal(raw, to); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from) //nolint:gosec // a path that goreleaser wrote
	if err != nil {
		return err
	}
	defer in.Close()          //nolint:errcheck // the file was only read
	out, err := os.Create(to) //nolint:gosec // a file of the release
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
