// Package npx parses commands that run an npm package. It also manages the directories where the gateway installs these
// packages.
package npx

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Command contains the package and the program that a command such as `npx -y PACKAGE@VERSION ARGUMENT` runs.
type Command struct {
	// Package is the package in npm syntax. It can be a package name, optionally with a version, a range or a tag. It
	// can also be an alias, the address of a tarball or a git repository, or the absolute path of a tarball.
	Package string
	// Program is the program that the command runs if the command has the option --package. If Program is empty, the
	// command runs the package's own program.
	Program string
	// Args are the program's arguments.
	Args []string
}

// Parse returns the package and the program that a command with npx or `npm exec` runs. If the command runs a package
// in a way that Parse does not support, Parse returns nil and the reason. If the command runs no npm package with npx
// or `npm exec`, Parse returns nil and an empty reason.
func Parse(command []string) (c *Command, why string) {
	if len(command) == 0 {
		return nil, ""
	}
	args := command[1:]
	stopAtFirst := true // npm reads flags after the package, and npx does not
	switch filepath.Base(command[0]) {
	case "npx":
	case "npm":
		if len(args) == 0 || args[0] != "exec" && args[0] != "x" {
			return nil, ""
		}
		args, stopAtFirst = args[1:], false
	default:
		return nil, ""
	}
	packages, words, why := splitArguments(args, stopAtFirst)
	switch {
	case why != "":
		return nil, why
	case len(packages) > 1:
		return nil, "it names several packages"
	case len(packages) == 1 && len(words) == 0:
		return nil, "it names no program of the package"
	case len(packages) == 1:
		c = &Command{Package: packages[0], Program: words[0], Args: words[1:]}
		if strings.ContainsRune(c.Program, '/') {
			return nil, "it runs a file by its path"
		}
	case len(words) == 0:
		return nil, "it names no package"
	default:
		c = &Command{Package: words[0], Args: words[1:]}
	}
	if why := refusalOf(c.Package); why != "" {
		return nil, why
	}
	return c, ""
}

// splitArguments returns the packages in the --package flags, and all words that are not npm flags. If it does not
// support a flag, it returns the reason.
func splitArguments(args []string, stopAtFirst bool) (packages, words []string, why string) {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		name, value, hasValue := strings.Cut(arg, "=")
		switch {
		case arg == "--":
			return packages, append(words, args[i+1:]...), ""
		case slices.Contains([]string{"-y", "--yes", "-q", "--quiet"}, arg):
		case (name == "-p" || name == "--package") && hasValue:
			packages = append(packages, value)
		case arg == "-p" || arg == "--package":
			if i++; i == len(args) {
				return nil, nil, "its flag " + arg + " has no value"
			}
			packages = append(packages, args[i])
		case strings.HasPrefix(arg, "-"):
			return nil, nil, fmt.Sprintf("the gateway does not support its flag %s", name)
		case stopAtFirst:
			return packages, append(words, args[i:]...), ""
		default:
			words = append(words, arg)
		}
	}
	return packages, words, ""
}

// maxPackage limits the length of a package in npm syntax, in bytes.
const maxPackage = 1024

// local matches packages that are local files or directories. It does not match addresses of git repositories. archive
// matches tarballs with an absolute path. relativeGit matches local git repositories without an absolute path.
var (
	local       = regexp.MustCompile(`^(?:[.~/]|[a-zA-Z]:|file:|link:|workspace:)|^[^:]*@(?:[.~/]|file:|link:|workspace:)|^[^:]*[.](?:tgz|tar[.]gz|tar)$`)
	archive     = regexp.MustCompile(`^(?:(?:@[^/@:\s]+/)?[^/@:\s]+@)?(?:file:(?://)?)?(/[^%#?]*[.](?:(?i)tgz|tar[.]gz|tar))$`)
	relativeGit = regexp.MustCompile(`^(?:[^:]*@)?git[+]file:(?:[^/]|/[^/]|//[^/])`)
)

// refusalOf returns the reason why the gateway does not install a package. It returns "" if the gateway installs it.
func refusalOf(spec string) string {
	switch {
	case spec == "" || len(spec) > maxPackage || strings.HasPrefix(spec, "-") || strings.ContainsFunc(spec, func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) }):
		return "its package is written in a form that the gateway does not support"
	case relativeGit.MatchString(spec):
		return "its package is a git repository of this machine without an absolute path: write git+file:///PATH"
	case local.MatchString(spec) && !archive.MatchString(spec):
		return "its package is a folder or a relative path of this machine: write the absolute path of a tarball (.tgz)"
	}
	return ""
}

var (
	registered = regexp.MustCompile(`^((?:@[^/@:\s]+/)?[^/@:\s]+)(?:@(.*))?$`)
	version    = regexp.MustCompile(`^[v=]*\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?$`)
	commit     = regexp.MustCompile(`#[0-9a-f]{40}$`)
	credential = regexp.MustCompile(`://[^/@\s]*@`)
	query      = regexp.MustCompile(`\?[^#]*`)
)

// Name returns the name of the package in a registry, or "" if the package is given by an address.
func (c *Command) Name() string {
	if parts := registered.FindStringSubmatch(c.Package); parts != nil {
		return parts[1]
	}
	return ""
}

// File returns the absolute path of the package if it is a tarball on this machine. Otherwise it returns "".
func (c *Command) File() string {
	if parts := archive.FindStringSubmatch(c.Package); parts != nil {
		return parts[1]
	}
	return ""
}

// IsExact reports whether the command always installs the same version of the package. This is the case if the command
// names a version in a registry or a commit.
func (c *Command) IsExact() bool {
	spec := c.Package
	if _, aliased, isAlias := strings.Cut(spec, "@npm:"); isAlias {
		spec = aliased
	}
	if parts := registered.FindStringSubmatch(spec); parts != nil {
		return version.MatchString(parts[2])
	}
	return commit.MatchString(spec)
}

// IsBare reports whether the command names only a package, without a version or a program. In that case, npx runs an
// installed program that has the package's name, if there is one.
func (c *Command) IsBare() bool { return c.Program == "" && c.Name() == c.Package }

// DisplayPackage returns the package for use in messages. The result contains no credentials and no query string.
func (c *Command) DisplayPackage() string {
	return query.ReplaceAllString(credential.ReplaceAllString(c.Package, "://"), "")
}
