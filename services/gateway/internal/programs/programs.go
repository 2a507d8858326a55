// Package programs finds the files that stdio servers execute, so that the gateway can prevent the servers' processes
// from changing these files.
package programs

import (
	"bufio"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Command is the command that starts a server.
type Command struct {
	// Program is the absolute path of the program's file, and Args are the program's arguments without its name.
	Program string
	Args    []string
	// Env contains the environment variables of the server's processes. Files looks up programs in this PATH.
	Env map[string]string
	// Dir is the absolute path of the working directory of all processes, or empty if each process has its own working
	// directory.
	Dir string
	// Home is the operator's home directory, or empty if there is none.
	Home string
}

// Files returns the existing files and directories from which a server's program runs, as absolute paths. If a file's
// directory is not shared, Files returns the directory instead of the file. It finds
//
//   - the program, scripts among the arguments, and the interpreters that their first lines name, each with the
//     directory that contains the file or a link to it;
//   - the package of each of these files: the nearest parent directory with a manifest such as package.json, the
//     outermost node_modules or site-packages, the node_modules directories above the package, the prefix of an
//     installation and the virtual environment;
//   - the directories of PATH, and the paths in variables from which interpreters load code or trusted certificates.
//
// Files never returns a directory that users and other programs share, such as HOME or /tmp. It returns the individual
// files in such a directory instead.
func Files(c *Command) []string {
	f := finder{command: c, found: make(map[string]bool), seen: make(map[string]bool)}
	f.addFile(c.Program)
	f.addArguments()
	f.addEnvironment()
	return slices.Sorted(maps.Keys(f.found))
}

// System returns the existing directories that contain the system's programs, libraries, settings and certificates.
// Some resolver settings and certificates in /etc can be links to files elsewhere. System also returns these files and
// their directories. It omits directories that users and other programs share.
func System() []string {
	found := make(map[string]bool)
	for _, path := range []string{
		"/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/sbin", "/snap", "/usr", "/var/lib/ca-certificates", "/var/spool/cron",
	} {
		if exists(path) {
			found[path] = true
		}
	}
	for _, path := range []string{"/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/certs/ca-certificates.crt"} {
		real, err := filepath.EvalSymlinks(path)
		if err != nil || isBelow(real, "/etc") {
			continue
		}
		if found[real] = true; !isShared(filepath.Dir(real), "") { // otherwise, the file could be replaced
			found[filepath.Dir(real)] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

type finder struct {
	command *Command
	found   map[string]bool
	seen    map[string]bool
}

// addFile adds a program, the directories from which the program's code is loaded, and the program's interpreter.
func (f *finder) addFile(path string) {
	if !filepath.IsAbs(path) || f.seen[path] || !exists(path) {
		return
	}
	f.seen[path] = true
	for _, hop := range linkChain(path) {
		if !f.addFolder(filepath.Dir(hop)) {
			f.found[hop] = true
		}
		f.addCodeFolders(hop)
	}
	f.addFile(f.interpreter(path))
}

// addFolder adds a directory if the directory may be made read-only for all servers. It reports whether it has added
// the directory.
func (f *finder) addFolder(path string) bool {
	if isShared(path, f.command.Home) || !isFolder(path) {
		return false
	}
	f.found[path] = true
	return true
}

var manifests = []string{"package.json", "pyproject.toml", "setup.py", "go.mod", "Cargo.toml", "Gemfile", "composer.json", "deno.json", "pyvenv.cfg"}

// codeFolders are directories from which interpreters load code.
var codeFolders = []string{"node_modules", "site-packages", "dist-packages"}

// addCodeFolders adds the directories from which a program's code is loaded.
func (f *finder) addCodeFolders(path string) {
	packaged := false
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if !packaged && isPackage(dir) {
			packaged = f.addFolder(dir)
		}
		if slices.Contains(codeFolders, filepath.Base(dir)) {
			f.addFolder(dir)
		}
		f.addFolder(filepath.Join(dir, "node_modules"))
		if dir == "/" {
			break
		}
	}
	bin := filepath.Dir(path)
	if slices.Contains([]string{"bin", "sbin", "shims"}, filepath.Base(bin)) {
		prefix := filepath.Dir(bin)
		for _, name := range []string{"lib", "lib64", "versions", "installs"} {
			f.addFolder(filepath.Join(prefix, name))
		}
	}
}

func isPackage(dir string) bool {
	return slices.ContainsFunc(manifests, func(name string) bool { return exists(filepath.Join(dir, name)) })
}

// interpreter returns the program that the first line of a script names, or "" if there is none.
func (f *finder) interpreter(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()  //nolint:errcheck // the file is only read
	const maxLine = 256 // BINPRM_BUF_SIZE of Linux
	head, _ := bufio.NewReaderSize(file, maxLine).Peek(maxLine)
	line, isScript := strings.CutPrefix(string(head), "#!")
	if !isScript {
		return ""
	}
	line, _, _ = strings.Cut(line, "\n")
	words := strings.Fields(line)
	if len(words) == 0 {
		return ""
	}
	if filepath.Base(words[0]) != "env" {
		return words[0]
	}
	f.addFile(words[0])
	for _, word := range words[1:] {
		if !strings.HasPrefix(word, "-") && !strings.Contains(word, "=") {
			return f.lookUp(word)
		}
	}
	return ""
}

// lookUp returns the path of a program in PATH, or "" if PATH does not contain it.
func (f *finder) lookUp(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	for _, dir := range filepath.SplitList(f.command.Env["PATH"]) {
		if file := filepath.Join(dir, name); filepath.IsAbs(dir) && exists(file) {
			return file
		}
	}
	return ""
}

// linkChain returns the symbolic links that lead to a file, and the file itself.
func linkChain(path string) []string {
	const maxLinks = 40 // the limit of Linux
	var out []string
	real := "/"
	todo := strings.Split(strings.Trim(filepath.Clean(path), "/"), "/")
	for links := 0; len(todo) > 0; {
		next := filepath.Join(real, todo[0])
		todo = todo[1:]
		target, err := os.Readlink(next)
		if err != nil {
			real = next
			continue
		}
		out = append(out, next)
		if links++; links > maxLinks {
			return out
		}
		if filepath.IsAbs(target) {
			real = "/"
		}
		todo = append(strings.Split(strings.Trim(target, "/"), "/"), todo...)
	}
	return append(out, real)
}

// isShared reports whether the given directory contains a directory that users and other programs share, or is one
// itself.
func isShared(dir, home string) bool {
	if filepath.Dir(dir) == "/home" {
		return true
	}
	shared := []string{"/tmp", "/var/tmp", "/dev/shm", "/var/lib", "/var/cache", "/run", "/home", "/root", "/srv", "/mnt", "/media", "/proc", "/sys", os.TempDir()}
	for _, home := range []string{home, realOf(home)} {
		if home != "" {
			shared = append(shared, home, filepath.Join(home, ".local"), filepath.Join(home, ".cache"), filepath.Join(home, ".config"), filepath.Join(home, ".npm"))
		}
	}
	return slices.ContainsFunc(shared, func(path string) bool { return isBelow(path, dir) })
}

func realOf(path string) string {
	real, _ := filepath.EvalSymlinks(path)
	return real
}

func isBelow(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
