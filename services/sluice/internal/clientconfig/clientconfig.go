// Package clientconfig contains the paths at which MCP clients store their configuration. It reads and writes the
// entries for MCP servers in these files. The package does no I/O. Paths depend only on a [System], and the contents of
// files are passed as bytes.
package clientconfig

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// A System describes the machine on which the clients run.
type System struct {
	// OS is linux, darwin or windows.
	OS string
	// Home is the user's home directory.
	Home string
	// Getenv returns the value of an environment variable, or an empty string if the variable is not set.
	Getenv func(string) string
}

// Variables returns the names of the environment variables that change the paths of clients' files, without the
// variables that set the home directory.
func Variables() []string {
	return []string{
		"XDG_CONFIG_HOME", "APPDATA", "LOCALAPPDATA", "CLAUDE_CONFIG_DIR", "CLINE_DATA_DIR", "CLINE_MCP_SETTINGS_PATH", "CODEX_HOME",
		"COPILOT_HOME", "GEMINI_CLI_HOME",
	}
}

// A Client is an MCP client.
type Client struct {
	// ID identifies the client in commands. It consists of lower-case letters and hyphens.
	ID string
	// Name is the displayed name of the client, such as Claude Code.
	Name   string
	Limits Limits
	// HTTP is true if the client can connect to a server with Streamable HTTP.
	HTTP bool

	dialect dialect
	user    func(System) []string
	// project contains the paths of the client's files in a project, with slashes and relative to the project's directory.
	// A path may end with a pattern such as *.yaml.
	project []string
}

// Limits contains the limits of a client. A limit is 0 if it is not known.
type Limits struct {
	// Tools is the maximum number of tools in all servers together.
	Tools int
	// ToolName is the maximum length of a tool's name, including the prefixes that the client adds.
	ToolName int
	// Call is the timeout of the client for calls.
	Call time.Duration
}

// A Scope says in which projects an entry is used.
type Scope int

// These are the scopes. A local entry is stored in the user's file, but is used in only one project.
const (
	User Scope = iota
	Local
	Project
)

// String returns the name of the scope.
func (s Scope) String() string { return [...]string{"user", "local", "project"}[s] }

// A File is a configuration file of a client. The file need not exist.
type File struct {
	Client Client
	// Path is the path of the file. If Pattern is true, the last element of the path is a pattern for filepath.Match.
	Path    string
	Pattern bool
	// Scope is User or Project.
	Scope Scope
	// Project is the directory of the project. It is empty for a file of the user. A file in a project must not be written
	// outside this directory. See Within of atomicfile.Writer.
	Project string
	Layout  configedit.Layout
}

// Find returns the client with the given ID.
func Find(id string) (Client, bool) {
	all := Clients()
	at := slices.IndexFunc(all, func(c Client) bool { return c.ID == id })
	if at < 0 {
		return Client{}, false
	}
	return all[at], true
}

// Files returns the configuration files of a client: the user's files and, if project is not empty, the files in this
// project. It returns nil if the client does not store its configuration in files.
func (c Client) Files(sys System, project string) []File {
	var out []File
	if c.user != nil {
		for _, p := range c.user(sys) {
			out = append(out, c.file(p, User, ""))
		}
	}
	if project == "" {
		return out
	}
	for _, p := range c.project {
		out = append(out, c.file(sys.join(project, strings.Split(p, "/")...), Project, project))
	}
	return out
}

func (c Client) file(p string, scope Scope, project string) File {
	return File{Client: c, Path: p, Pattern: strings.Contains(p, "*"), Scope: scope, Project: project, Layout: c.dialect.layout}
}

// join joins the elements of a path with the system's path separator.
func (s System) join(dir string, elem ...string) string {
	if s.OS == "windows" {
		return strings.TrimRight(dir, `\/`) + `\` + strings.Join(elem, `\`)
	}
	return path.Join(append([]string{dir}, elem...)...)
}

// home returns a path in the home directory.
func (s System) home(elem ...string) string { return s.join(s.Home, elem...) }

// env returns the value of an environment variable if it is an absolute path. Otherwise it returns the fallback.
func (s System) env(name, fallback string) string {
	value := s.Getenv(name)
	windows := s.OS == "windows" && len(value) > 2 && value[1] == ':' && (value[2] == '\\' || value[2] == '/')
	if windows || s.OS != "windows" && path.IsAbs(value) {
		return value
	}
	return fallback
}

// xdg returns a path in the configuration directory of the XDG Base Directory Specification.
func (s System) xdg(elem ...string) string {
	return s.join(s.env("XDG_CONFIG_HOME", s.home(".config")), elem...)
}

// appData returns a path in the directory in which desktop applications store their configuration.
func (s System) appData(elem ...string) string {
	switch s.OS {
	case "windows":
		return s.join(s.env("APPDATA", s.home("AppData", "Roaming")), elem...)
	case "darwin":
		return s.home(append([]string{"Library", "Application Support"}, elem...)...)
	default:
		return s.xdg(elem...)
	}
}
