package programs

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// interpreters are programs that run their first argument that is not an option. The names contain no versions.
var interpreters = []string{
	"node", "nodejs", "python", "pypy", "ruby", "perl", "php", "deno", "bun", "tsx", "ts-node", "java", "lua", "sh", "bash", "dash", "zsh", "ksh", "fish", "dotnet", "go", "julia", "Rscript",
}

// managers are programs that run what a package defines: the package in the working folder, or in a folder that an
// option names. fetchers are programs that run what they install, or what is installed in the working folder.
var (
	managers = []string{"npm", "pnpm", "yarn", "bun", "deno", "uv", "poetry", "pdm", "hatch", "go", "cargo", "bundle", "make"}
	fetchers = []string{"npx", "bunx", "uvx", "pipx"}
)

// projectOptions are the options that name the folder of a package.
var projectOptions = []string{"--directory", "--project", "--prefix", "--cwd", "--from", "--with-editable", "-C"}

// scripts are the extensions of files that contain code for any interpreter.
var scripts = []string{
	".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".tsx", ".jsx", ".py", ".pyz", ".pyc", ".rb", ".pl", ".php", ".sh", ".bash", ".zsh", ".jar", ".war", ".class", ".lua", ".jl", ".R",
	".exe", ".dll", ".so", ".node", ".wasm", ".whl", ".tgz",
}

// arguments adds the scripts and packages that the arguments name.
func (f *finder) arguments() {
	c := f.command
	name := strings.TrimRight(filepath.Base(c.Program), "0123456789.")
	runs := slices.Contains(interpreters, name)
	for i, arg := range c.Args {
		for _, word := range words(arg) {
			if path := f.absolute(word); isScript(path) {
				f.file(path)
			}
		}
		switch {
		case runs && !strings.HasPrefix(arg, "-"):
			found := f.code(f.absolute(arg))
			runs = !found && slices.Contains(managers, name) // a manager's command, such as run, comes before the program
		case arg == "-m" && i+1 < len(c.Args):
			module := strings.ReplaceAll(c.Args[i+1], ".", "/")
			f.code(f.absolute(module))
			f.code(f.absolute(module + ".py"))
		}
	}
	if c.Dir != "" {
		f.folder(filepath.Join(c.Dir, "node_modules"))
		f.folder(filepath.Join(c.Dir, ".venv"))
	}
	if slices.Contains(managers, name) && c.Dir != "" && isPackage(c.Dir) {
		f.folder(c.Dir)
	}
	if slices.Contains(managers, name) || slices.Contains(fetchers, name) {
		f.projects()
	}
}

// projects adds the packages in folders that options name.
func (f *finder) projects() {
	c := f.command
	for i, arg := range c.Args {
		option, value, joined := strings.Cut(arg, "=")
		if !joined && i+1 < len(c.Args) {
			value = c.Args[i+1]
		}
		if slices.Contains(projectOptions, option) {
			f.code(f.absolute(value))
		}
	}
}

// code adds a file, or a folder that contains code, and reports whether it exists.
func (f *finder) code(path string) bool {
	switch {
	case path == "" || !exists(path):
		return false
	case isFolder(path):
		for _, hop := range hops(path) {
			f.folder(hop)
			f.belongings(filepath.Join(hop, "code")) // any name in the folder
		}
	default:
		f.file(path)
	}
	return true
}

// absolute returns the absolute form of a path that the program gets. It is empty for a path relative to a private
// folder of each process.
func (f *finder) absolute(path string) string {
	path = strings.TrimPrefix(path, "file://")
	switch {
	case filepath.IsAbs(path):
		return filepath.Clean(path)
	case f.command.Dir == "" || path == "" || len(path) > 4096:
		return ""
	default:
		return filepath.Join(f.command.Dir, path)
	}
}

// isScript reports whether a path is a file of code, judged by its extension, or by its mode and its first bytes. The
// mode alone is not enough, because on some file systems every file is executable.
func isScript(path string) bool {
	return path != "" && !isFolder(path) && exists(path) && (slices.Contains(scripts, filepath.Ext(path)) || isExecutable(path) && isProgram(path))
}

// isProgram reports whether a file begins like a script or an ELF program.
func isProgram(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return true // the file cannot be read, so it may be a program
	}
	defer file.Close() //nolint:errcheck // the file is only read
	head := make([]byte, 4)
	n, _ := io.ReadFull(file, head)
	return strings.HasPrefix(string(head[:n]), "#!") || string(head[:n]) == "\x7fELF"
}

// words returns the parts of an argument that could be paths, as in `--import=/opt/x.mjs` or in a shell command.
func words(arg string) []string {
	return strings.FieldsFunc(arg, func(r rune) bool { return strings.ContainsRune(" \t\n\"'`=;&|()<>,", r) })
}

// loaded are the variables that name code which interpreters and the loader load, or trusted certificates. Their values
// are lists of paths, or options with paths.
var loaded = []string{
	"PATH", "NODE_PATH", "NODE_OPTIONS", "NODE_EXTRA_CA_CERTS", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "RUBYLIB", "RUBYOPT", "GEM_PATH", "GEM_HOME", "PERL5LIB", "PERL5OPT",
	"CLASSPATH", "JAVA_TOOL_OPTIONS", "LUA_PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "BASH_ENV", "ENV", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
}

// environment adds the paths in the loaded variables, and the folders of the operator's home from which Python loads
// code.
func (f *finder) environment() {
	c := f.command
	for _, name := range loaded {
		for _, list := range words(c.Env[name]) {
			for _, path := range filepath.SplitList(list) {
				if !filepath.IsAbs(path) || !exists(path) {
					continue
				}
				if path = filepath.Clean(path); isFolder(path) {
					f.folder(path)
					for _, hop := range hops(path) {
						f.folder(hop)
					}
				} else {
					f.file(path)
				}
			}
		}
	}
	if c.Home != "" {
		f.folder(filepath.Join(c.Home, ".local", "bin"))
		f.folder(filepath.Join(c.Home, ".local", "lib"))
	}
}
