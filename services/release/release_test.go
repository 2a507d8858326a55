package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"
)

func TestPlatforms_AreWhatGoreleaserBuilds(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../.goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Builds []struct{ Goos, Goarch []string }
	}
	if err := yaml.Unmarshal(raw, &config); err != nil || len(config.Builds) != 1 {
		t.Fatalf("%d builds, %v", len(config.Builds), err)
	}
	var want, got []string
	for _, goos := range config.Builds[0].Goos {
		for _, goarch := range config.Builds[0].Goarch {
			want = append(want, goos+"/"+goarch)
		}
	}
	for _, p := range platforms {
		got = append(got, p.goos+"/"+p.goarch)
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("platforms (-goreleaser +npm):\n%s", diff)
	}
}

// writePackages gets the files that goreleaser writes, with short contents. It writes one npm package for each
// platform. The file checksums.txt contains a line for each file, and the provenance contains the digest of each file.
// The formula contains the digest of the archive for linux_amd64.
func TestWritePackages_DescribesEveryFile(t *testing.T) {
	t.Parallel()
	dist := filepath.Join(t.TempDir(), "dist")
	artifacts := []artifact{}
	add := func(kind, goos, goarch, name string) {
		path := filepath.Join(dist, kind, goos+goarch, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(kind+name), 0o600); err != nil {
			t.Fatal(err)
		}
		relative := filepath.Join("dist", kind, goos+goarch, name)
		artifacts = append(artifacts, artifact{Name: name, Path: relative, Goos: goos, Goarch: goarch, Type: kind})
	}
	for _, p := range platforms {
		add("Binary", p.goos, p.goarch, "sluice")
		add("Archive", p.goos, p.goarch, "sluice_1.2.3_"+p.goos+"_"+p.goarch+".tar.gz")
	}
	b := build{version: "1.2.3", commit: "abc", date: time.Unix(1e9, 0).UTC()}
	writeJSON(t, filepath.Join(dist, "artifacts.json"), artifacts)
	writeJSON(t, filepath.Join(dist, "metadata.json"), map[string]string{"version": "1.2.3"})
	if err := writePackages(dist, build{version: "1.2.4"}); err == nil {
		t.Error("writePackages accepts a version other than the one that goreleaser built")
	}
	if err := writePackages(dist, b); err != nil {
		t.Fatal(err)
	}
	release := filepath.Join(dist, "release")
	first := readFile(t, filepath.Join(release, "checksums.txt"))
	if n := strings.Count(first, "\n"); n != 2*len(platforms)+3 { // the launcher, the formula and the Dockerfile
		t.Errorf("checksums.txt has %d lines:\n%s", n, first)
	}
	for line := range strings.SplitSeq(strings.TrimSpace(first), "\n") {
		sum, name, _ := strings.Cut(line, "  ")
		if !strings.Contains(readFile(t, filepath.Join(release, "provenance.json")), `"sha256": "`+sum+`"`) {
			t.Errorf("the provenance does not have the digest of %s", name)
		}
		if strings.Contains(name, "linux_amd64") && !strings.Contains(readFile(t, filepath.Join(release, "sluice.rb")), sum) {
			t.Errorf("the formula does not have the digest of %s", name)
		}
	}
	files := unpack(t, filepath.Join(release, "sluice-win32-x64-1.2.3.tgz"))
	if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, []string{"package/bin/sluice.exe", "package/package.json"}) {
		t.Errorf("the package for Windows contains %v", got)
	}
	if strings.Contains(files["package/package.json"], "scripts") {
		t.Error("the package has scripts")
	}
	if err := writePackages(dist, b); err != nil {
		t.Fatal(err)
	}
	if second := readFile(t, filepath.Join(release, "checksums.txt")); second != first {
		t.Errorf("a second run wrote other files:\n%s", cmp.Diff(first, second))
	}
}

// installLauncher returns a command that runs the launcher, and the path at which the launcher looks for the program.
// The caller starts the command, and writes the program if the test needs one.
func installLauncher(t *testing.T, args ...string) (cmd *exec.Cmd, program string) {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("needs node")
	}
	out, err := exec.Command(node, "-p", "process.platform + '-' + process.arch").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program = filepath.Join(dir, "node_modules", npmName+"-"+strings.TrimSpace(string(out)), "bin", "sluice")
	if err := os.MkdirAll(filepath.Dir(program), 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "launcher.js")
	if err := os.WriteFile(path, launcher, 0o600); err != nil {
		t.Fatal(err)
	}
	return exec.Command(node, append([]string{path}, args...)...), program
}

// The program is a shell script. The launcher passes on the arguments, the standard streams and the exit code. If a
// signal kills the program, the launcher is killed by the same signal. If there is no program, the launcher's message
// names the missing package.
func TestLauncher_RunsTheProgramOfThisPlatform(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		script, want string
		code         int
		signal       syscall.Signal
	}{
		"exit code": {script: "printf '%s,' \"$@\"; cat; exit 7", want: "one,two words,input", code: 7},
		"signal":    {script: "kill -KILL $$", code: -1, signal: syscall.SIGKILL},
		"missing":   {code: 1, want: "is not installed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, program := installLauncher(t, "one", "two words")
			if tt.script != "" {
				if err := os.WriteFile(program, []byte("#!/bin/sh\n"+tt.script+"\n"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			cmd.Stdin = strings.NewReader("input")
			out, err := cmd.CombinedOutput()
			status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if !ok || cmd.ProcessState.ExitCode() != tt.code || status.Signaled() != (tt.signal != 0) ||
				status.Signaled() && status.Signal() != tt.signal || !strings.Contains(string(out), tt.want) {
				t.Errorf("%v, want code %d and signal %d:\n%s", err, tt.code, tt.signal, out)
			}
		})
	}
}

// The program waits until it gets SIGTERM, and then exits with its own exit code.
func TestLauncher_PassesSignals(t *testing.T) {
	t.Parallel()
	cmd, program := installLauncher(t)
	script := "#!/bin/sh\ntrap 'exit 9' TERM\necho ready\nread -r line\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe() // stays open, so that `read` waits
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready"))); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 9 {
		t.Errorf("the launcher ended with %v, want exit code 9", err)
	}
}

// The test makes a key, signs the provenance of a small release, and verifies the release with the commands in
// docs/releases.md. The commands fail if a file has been changed. If the release is signed with a key that is not in
// the file of signers, sign.sh fails and leaves no signature.
func TestSign_IsVerifiedByTheDocumentedCommands(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("needs ssh-keygen")
	}
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	script := func(name string, args ...string) (string, error) {
		out, err := exec.Command("./"+name, args...).CombinedOutput()
		return string(out), err
	}
	if err := os.WriteFile(in("sluice.rb"), []byte("a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeDigests(dir, build{version: "1.2.3"}); err != nil {
		t.Fatal(err)
	}
	for key, signers := range map[string]string{"key": "release-signers", "other": "others"} {
		if out, err := script("newkey.sh", in(key), in(signers), "-N", ""); err != nil {
			t.Fatalf("newkey.sh: %v\n%s", err, out)
		}
	}
	if out, err := script("newkey.sh", in("third"), in("release-signers"), "-N", ""); err == nil {
		t.Errorf("newkey.sh replaced the public key:\n%s", out)
	}
	if out, err := script("sign.sh", in("other"), dir, in("release-signers")); err == nil || !strings.Contains(out, "the release is not signed") {
		t.Errorf("sign.sh with another key: %v\n%s", err, out)
	}
	if _, err := os.Stat(in("provenance.json.sig")); err == nil {
		t.Error("sign.sh left the signature of another key")
	}
	if out, err := script("sign.sh", in("key"), dir, in("release-signers")); err != nil {
		t.Fatalf("sign.sh: %v\n%s", err, out)
	}
	_, after, _ := strings.Cut(readFile(t, "../../docs/releases.md"), "## Verify a release")
	commands := strings.Split(after, "```")[1]
	verify := func() (string, error) {
		cmd := exec.Command("bash", "-ec", commands)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := verify(); err != nil || !strings.Contains(out, "sluice.rb: OK") {
		t.Errorf("the release is not valid: %v\n%s", err, out)
	}
	for _, name := range []string{"sluice.rb", "checksums.txt", "provenance.json"} {
		before := readFile(t, in(name))
		for _, content := range []string{before + " ", before} {
			if err := os.WriteFile(in(name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := verify(); (err == nil) != (content == before) {
				t.Errorf("%s with %d bytes instead of %d: %v\n%s", name, len(content), len(before), err, out)
			}
		}
	}
}

func TestReady_RefusesBeforeTheBuild(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ version, key, unsigned, want string }{
		{"", "", "1", `VERSION is ""`},
		{"v0.1.0", "", "1", `VERSION is "v0.1.0"`},
		{"0.1.0", "", "", "KEY is not set"},
		{"0.1.0", "/nonexistent", "", "the key /nonexistent does not exist"},
		{"999.0.0", "", "1", "services/go.mod does not require gen v999.0.0"},
	} {
		out, err := exec.Command("./ready.sh", tt.version, tt.key, tt.unsigned).CombinedOutput()
		if err == nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("ready.sh %q %q %q: %v, %s", tt.version, tt.key, tt.unsigned, err, out)
		}
	}
}

// `go install` refuses a module that replaces another. In the repository, go.work replaces the version of gen that services
// requires, which may not be published yet.
func TestGoMod_HasNoReplace(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"../go.mod", "../../gen/go.mod"} {
		if strings.Contains(readFile(t, path), "replace") {
			t.Errorf("%s replaces a module", path)
		}
	}
	required := regexp.MustCompile(`sluice/gen (v\S+)\n`).FindStringSubmatch(readFile(t, "../go.mod"))
	if want := "replace " + repository + "/gen " + required[1] + " => ./gen\n"; !strings.Contains(readFile(t, "../../go.work"), want) {
		t.Errorf("go.work does not contain %q", want)
	}
}

func writeJSON(t *testing.T, path string, v any) {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// unpack returns the files of an npm package.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	unpacked, err := gzip.NewReader(bytes.NewReader([]byte(readFile(t, path))))
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for archive := tar.NewReader(unpacked); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(content)
	}
}
