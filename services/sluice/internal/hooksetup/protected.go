package hooksetup

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
)

// Protected detects calls that would change Sluice's own files, or files that configure a client's hooks and MCP
// servers. It also detects calls that would read Sluice's tokens and secrets.
type Protected struct {
	System clientconfig.System
	// Client is the id of the client that makes the calls.
	Client string
	// Own contains the paths of Sluice's own files and directories.
	Own []string
	// Data is the data directory, which contains the tokens and secrets. If it is empty, calls that read files are not
	// marked.
	Data string
}

// settingsPatterns match the last elements of the paths of clients' settings files. They complement the files that
// [clientconfig] knows.
var settingsPatterns = []string{
	".claude.json", ".claude/settings*.json", ".gemini/settings.json", ".gemini/trustedfolders.json", ".gemini/.env",
}

// settingsDirs contains directories that clients read at any location. The files in them can define MCP servers, hooks
// and shell commands.
var settingsDirs = []string{
	".claude/agents", ".claude/commands", ".claude/plugins", ".claude/skills", ".claude/workflows",
	".gemini/agents", ".gemini/commands", ".gemini/extensions", ".gemini/policies", ".codex",
}

// clientDirs contains the default names of the directories for clients' settings, which TargetOf uses. Environment
// variables can name other directories.
var clientDirs = map[string]string{"claude-code": ".claude", hosttools.Codex: ".codex", "gemini": ".gemini"}

// maxLinks is the maximum number of symbolic links in a path.
const maxLinks = 255

var errLinks = errors.New("the path has too many symbolic links")

// unknown is the result of find if the arguments of a call do not name the file.
const unknown = "unknown, because the arguments do not name the file"

// Mark returns the arguments of a call. It adds [hosttools.ProtectedFile] if the call would change a protected file or
// read a secret, or if the arguments do not name a file. The parameter dir is the client's working directory.
func (p Protected) Mark(dir, tool string, arguments jsontext.Value) (jsontext.Value, error) {
	if !filepath.IsAbs(dir) {
		dir, _ = os.Getwd() // if this fails, relative paths count as paths below the root
	}
	found := ""
	switch {
	case hosttools.WritesFiles(tool):
		protected := p.paths(dir)
		found = p.find(dir, targetsOf(tool, arguments), func(form string) bool {
			return isWithin(form, protected) || p.matchesSettings(form)
		})
	case hosttools.ReadsFiles(tool) && p.Data != "":
		secret := []string{p.Data, physical(p.Data)}
		found = p.find(dir, readsOf(tool, arguments), func(form string) bool { return isWithin(form, secret) })
	}
	if found == "" {
		return arguments, nil
	}
	all := make(map[string]jsontext.Value)
	if err := json.Unmarshal(arguments, &all); err != nil {
		return nil, err
	}
	quoted, err := jsontext.AppendQuote(nil, strings.ToValidUTF8(found, "?"))
	if err != nil {
		return nil, err
	}
	all[hosttools.ProtectedFile] = quoted
	return json.Marshal(all, json.Deterministic(true))
}

// targetsOf returns the paths of the files that a call changes, as written in the arguments.
func targetsOf(tool string, arguments jsontext.Value) (out []string) {
	var a struct {
		File     string `json:"file_path"`
		Notebook string `json:"notebook_path"`
		Command  string `json:"command"`
		Input    string `json:"input"`
	}
	if err := json.Unmarshal(arguments, &a); err != nil {
		return nil
	}
	if tool != "apply_patch" {
		return slices.DeleteFunc([]string{a.File, a.Notebook}, func(s string) bool { return s == "" })
	}
	for line := range strings.Lines(a.Command + "\n" + a.Input) {
		for _, header := range []string{"*** Add File:", "*** Update File:", "*** Delete File:", "*** Move to:"} {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), header); ok {
				out = append(out, strings.TrimSpace(name))
			}
		}
	}
	return out
}

// find returns the protected path to which the first protected target leads, or "" if no target is protected. If there
// are no targets, it returns the constant unknown.
func (p Protected) find(dir string, targets []string, isProtected func(form string) bool) string {
	if len(targets) == 0 {
		return unknown
	}
	for _, target := range targets {
		for _, form := range p.forms(dir, target) {
			if isProtected(form) {
				return form
			}
		}
	}
	return ""
}

// forms returns the absolute paths to which a client can resolve a path. There can be several, because clients remove
// `..` before or after they follow symbolic links, and some clients replace `~`.
func (p Protected) forms(dir, target string) (out []string) {
	starts := []string{target, strings.TrimSpace(target)}
	if rest, ok := strings.CutPrefix(strings.TrimSpace(target), "~"); ok {
		starts = append(starts, p.System.Home+string(filepath.Separator)+rest)
	}
	for _, start := range starts {
		if !filepath.IsAbs(start) {
			start = dir + string(filepath.Separator) + start
		}
		clean := filepath.Clean(start)
		out = append(out, clean, physical(clean), physical(start))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// paths returns the protected paths. These are Sluice's own files, the clients' files of the user, and the clients'
// files in the working directory and all its parents. For a path with symbolic links, paths also returns the resolved
// path.
func (p Protected) paths(dir string) []string {
	out := slices.Clone(p.Own)
	for _, c := range clientconfig.Clients() {
		for _, f := range c.Files(p.System, "") {
			out = append(out, f.Path)
		}
		if t, err := TargetOf(c, p.System, ""); err == nil {
			out = append(out, t.Path)
			for _, name := range settingsDirs {
				if below, ok := strings.CutPrefix(name, clientDirs[c.ID]); ok {
					out = append(out, filepath.Join(filepath.Dir(t.Path), filepath.FromSlash(below)))
				}
			}
		}
	}
	project := append([]string{".claude/settings.json", ".claude/settings.local.json", ".mcp.json", ".gemini/settings.json"}, settingsDirs...)
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		for _, name := range project {
			out = append(out, filepath.Join(dir, filepath.FromSlash(name)))
		}
		if filepath.Dir(dir) == dir {
			break
		}
	}
	for _, name := range slices.Clone(out) {
		if real := physical(name); real != name {
			out = append(out, real)
		}
	}
	return out
}

// physical resolves all symbolic links in an absolute path. It keeps elements that do not exist. If the links form a
// loop, physical returns the path itself, because no program can open the file.
func physical(name string) string {
	if real, err := resolve(name); err == nil {
		return real
	}
	return filepath.Clean(name)
}

func resolve(name string) (string, error) {
	root := filepath.VolumeName(name) + string(filepath.Separator)
	rest := strings.Split(filepath.ToSlash(name[len(filepath.VolumeName(name)):]), "/")
	at, links := root, 0
	for len(rest) > 0 {
		element := rest[0]
		rest = rest[1:]
		switch element {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, element)
		to, err := os.Readlink(next)
		if err != nil { // not a link, or it does not exist
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", errLinks
		}
		if filepath.IsAbs(to) {
			at = filepath.VolumeName(to) + string(filepath.Separator)
			to = to[len(filepath.VolumeName(to)):]
		}
		rest = append(strings.Split(filepath.ToSlash(to), "/"), rest...)
	}
	if runtime.GOOS == "windows" { // Windows has short forms of names
		if long, err := filepath.EvalSymlinks(at); err == nil {
			at = long
		}
	}
	return at, nil
}

// folded returns the same string for all paths that a file system may treat as equal. Some file systems ignore case,
// differences between compatible characters, and invisible characters. Windows also ignores dots and spaces at the end
// of a name, and the name of a stream after a colon.
func folded(name string) string {
	name = strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(filepath.ToSlash(name), ""))
	name = norm.NFKC.String(cases.Fold().String(norm.NFKC.String(name)))
	elements := strings.Split(name, "/")
	for i, e := range elements {
		if i > 0 { // the first element can be a drive
			e, _, _ = strings.Cut(e, ":")
		}
		if e != "." && e != ".." {
			elements[i] = strings.TrimRight(e, ". ")
		}
	}
	return strings.Join(elements, "/")
}

// isWithin reports whether a path is equal to one of the given paths, or is below one of them.
func isWithin(name string, paths []string) bool {
	name = folded(name)
	return slices.ContainsFunc(paths, func(p string) bool {
		p = folded(p)
		return name == p || strings.HasPrefix(name, strings.TrimSuffix(p, "/")+"/")
	})
}

// matchesSettings reports whether a path can be a client's settings file, or can be below a directory that clients read
// at any location.
func (p Protected) matchesSettings(name string) bool {
	elements := strings.Split(folded(name), "/")
	for _, dir := range settingsDirs {
		n := strings.Count(dir, "/") + 1
		for i := range len(elements) - n + 1 {
			if strings.Join(elements[i:i+n], "/") == dir {
				return true
			}
		}
	}
	return slices.ContainsFunc(p.allPatterns(), func(pattern string) bool {
		n := strings.Count(pattern, "/") + 1
		if len(elements) < n {
			return false
		}
		matched, err := filepath.Match(pattern, strings.Join(elements[len(elements)-n:], "/"))
		return matched || err != nil
	})
}

// allPatterns returns [settingsPatterns] and the patterns of the files that clients read in projects.
func (p Protected) allPatterns() []string {
	out := slices.Clone(settingsPatterns)
	if p.Client == "gemini" { // Gemini CLI reads settings from this file
		out = append(out, ".env")
	}
	for _, c := range clientconfig.Clients() {
		for _, f := range c.Files(clientconfig.System{OS: "linux", Home: "/", Getenv: func(string) string { return "" }}, "/p") {
			if f.Scope == clientconfig.Project {
				out = append(out, folded(strings.TrimPrefix(f.Path, "/p/")))
			}
		}
	}
	return out
}
