package programs

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// interpreters are programs that run a file. The file is the first argument that is not an option. The names contain no
// versions.
var interpreters = []string{
	"node", "nodejs", "python", "pypy", "ruby", "perl", "php", "deno", "bun", "tsx", "ts-node", "java", "lua", "sh", "bash", "dash", "zsh", "ksh", "fish", "dotnet", "go", "julia", "Rscript",
}

// packageManagers are programs that run a command that a package defines. That package is in the working directory or
// in a directory that an option names. packageRunners are programs that run a package, and install it first if the
// working directory does not contain it.
var (
	packageManagers = []string{"npm", "pnpm", "yarn", "bun", "deno", "uv", "poetry", "pdm", "hatch", "go", "cargo", "bundle", "make"}
	packageRunners  = []string{"npx", "bunx", "uvx", "pipx"}
)

// gitSource matches the address of a local git repository, and fileSource matches the path of a local tarball. Both
// match all notations that package runners accept.
var (
	gitSource  = regexp.MustCompile(`(?:^|[@=])git[+]file://(/[^#?]+)`)
	fileSource = regexp.MustCompile(`(?:@|(?:^|[@=])file:(?://)?)(/[^#?]+[.](?:(?i)tgz|tar[.]gz|tar|whl|zip))$`)
)

// projectOptions are options whose value is the directory of a package.
var projectOptions = []string{"--directory", "--project", "--prefix", "--cwd", "--from", "--with-editable", "-C"}

// codeExtensions are the extensions of files with code for any interpreter.
var codeExtensions = []string{
	".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".tsx", ".jsx", ".py", ".pyz", ".pyc", ".rb", ".pl", ".php", ".sh", ".bash", ".zsh", ".jar", ".war", ".class", ".lua", ".jl", ".R",
	".exe", ".dll", ".so", ".node", ".wasm", ".whl", ".tgz",
}

func (f *finder) addArguments() {
	c := f.command
	name := strings.TrimRight(filepath.Base(c.Program), "0123456789.")
	runs := slices.Contains(interpreters, name)
	for i, arg := range c.Args {
		for _, word := range pathParts(arg) {
			if path := f.absolute(word); isScript(path) {
				f.addFile(path)
			}
		}
		switch {
		case runs && !strings.HasPrefix(arg, "-"):
			found := f.addCode(f.absolute(arg))
			// a package manager's program can follow a subcommand such as "run"
			runs = !found && slices.Contains(packageManagers, name)
		case arg == "-m" && i+1 < len(c.Args):
			module := strings.ReplaceAll(c.Args[i+1], ".", "/")
			f.addCode(f.absolute(module))
			f.addCode(f.absolute(module + ".py"))
		}
	}
	if c.Dir != "" {
		f.addFolder(filepath.Join(c.Dir, "node_modules"))
		f.addFolder(filepath.Join(c.Dir, ".venv"))
	}
	if slices.Contains(packageManagers, name) && c.Dir != "" && isPackage(c.Dir) {
		f.addFolder(c.Dir)
	}
	if slices.Contains(packageManagers, name) || slices.Contains(packageRunners, name) {
		f.addProjects()
	}
}

// addProjects adds the packages whose directories are the values of options, and the packages whose local addresses are
// arguments.
func (f *finder) addProjects() {
	c := f.command
	for i, arg := range c.Args {
		for _, source := range []*regexp.Regexp{gitSource, fileSource} {
			if parts := source.FindStringSubmatch(arg); parts != nil {
				f.addCode(filepath.Clean(parts[1]))
			}
		}
		option, value, joined := strings.Cut(arg, "=")
		if !joined && i+1 < len(c.Args) {
			value = c.Args[i+1]
		}
		if slices.Contains(projectOptions, option) {
			f.addCode(f.absolute(value))
		}
	}
}

// addCode adds a file with code, or a directory with code. It reports whether the path exists.
func (f *finder) addCode(path string) bool {
	switch {
	case path == "" || !exists(path):
		return false
	case isFolder(path):
		for _, hop := range linkChain(path) {
			f.addFolder(hop)
			f.addCodeFolders(filepath.Join(hop, "code")) // "code" represents any file in the directory
		}
	default:
		f.addFile(path)
	}
	return true
}

// absolute returns the absolute form of a path in the program's arguments. If each process has its own working
// directory, it returns "" for a relative path.
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

// isScript reports whether a path is a file with code. It checks the file's extension. If the extension is not known,
// it checks the file's mode and first bytes. The mode alone is not enough, because on some file systems every file is
// executable.
func isScript(path string) bool {
	return path != "" && !isFolder(path) && exists(path) && (slices.Contains(codeExtensions, filepath.Ext(path)) || isExecutable(path) && isProgram(path))
}

// isProgram reports whether a file begins like a script or an ELF binary.
func isProgram(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return true // a file that cannot be read could be a program
	}
	defer file.Close() //nolint:errcheck // the file is only read
	head := make([]byte, 4)
	n, _ := io.ReadFull(file, head)
	return strings.HasPrefix(string(head[:n]), "#!") || string(head[:n]) == "\x7fELF"
}

// pathParts returns the parts of an argument that could be paths. For example, it splits `--import=/opt/x.mjs` and
// shell commands.
func pathParts(arg string) []string {
	return strings.FieldsFunc(arg, func(r rune) bool { return strings.ContainsRune(" \t\n\"'`=;&|()<>,", r) })
}

// codeVariables are environment variables that contain paths. Their values are paths, lists of paths, or options with
// paths. The paths lead to trusted certificates, or to code for interpreters and the dynamic loader.
var codeVariables = []string{
	"PATH", "NODE_PATH", "NODE_OPTIONS", "NODE_EXTRA_CA_CERTS", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "RUBYLIB", "RUBYOPT", "GEM_PATH", "GEM_HOME", "PERL5LIB", "PERL5OPT",
	"CLASSPATH", "JAVA_TOOL_OPTIONS", "LUA_PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "BASH_ENV", "ENV", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
}

// addEnvironment adds the paths in the values of codeVariables. It also adds ~/.local/bin and ~/.local/lib, which can
// contain code for Python.
func (f *finder) addEnvironment() {
	c := f.command
	for _, name := range codeVariables {
		for _, list := range pathParts(c.Env[name]) {
			for _, path := range filepath.SplitList(list) {
				if !filepath.IsAbs(path) || !exists(path) {
					continue
				}
				if path = filepath.Clean(path); isFolder(path) {
					f.addFolder(path)
					for _, hop := range linkChain(path) {
						f.addFolder(hop)
					}
				} else {
					f.addFile(path)
				}
			}
		}
	}
	if c.Home != "" {
		f.addFolder(filepath.Join(c.Home, ".local", "bin"))
		f.addFolder(filepath.Join(c.Home, ".local", "lib"))
	}
}
