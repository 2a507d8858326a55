package propose

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
	"github.com/sluice-mesh/sluice/services/policy/internal/locator"
)

// commonURL returns the first of the given URLs if all strings are URLs with the same scheme, host and port. Otherwise
// it returns false.
func commonURL(texts []string) (first locator.URL, ok bool) {
	for i, text := range texts {
		u, err := locator.ParseURL(text)
		if err != nil {
			return locator.URL{}, false
		}
		if i == 0 {
			first = u
		}
		if u.Scheme != first.Scheme || u.Host != first.Host || u.Port != first.Port {
			return locator.URL{}, false
		}
	}
	return first, len(texts) > 0
}

func urlBound(value string, u locator.URL) (text, note string) {
	text = fmt.Sprintf("url.scheme(%[1]s) == %[2]s && url.host(%[1]s) == %[3]s && url.port(%[1]s) == %[4]d",
		value, strconv.QuoteToASCII(u.Scheme), strconv.QuoteToASCII(u.Host), u.Port)
	return text, fmt.Sprintf("a URL with the scheme %s, the host %s and the port %d", strconv.QuoteToASCII(u.Scheme), strconv.QuoteToASCII(u.Host), u.Port)
}

// arePaths reports whether all strings are paths. Relative paths count only if the argument's name says that it is a
// path.
func arePaths(name string, texts []string) bool {
	return !slices.ContainsFunc(texts, func(text string) bool {
		_, err := locator.ParsePath(text)
		return err != nil || !strings.HasPrefix(text, "/") && !condition.NamesPath(name)
	})
}

// commonFolder returns the deepest folder that contains all given paths. For a single path, it returns this path. It
// returns false if there is no common folder, or if the folder is too wide for a rule.
func commonFolder(texts []string, home string) (folder string, ok bool) {
	var common []string
	for i, text := range texts {
		p, err := locator.ParsePath(text)
		if err != nil {
			return "", false
		}
		segments := strings.Split(p.String(), "/") // an absolute path has an empty first segment
		if i == 0 {
			common = segments
		}
		n := 0
		for n < len(common) && n < len(segments) && common[n] == segments[n] {
			n++
		}
		common = common[:n]
	}
	folder = strings.Join(common, "/")
	return folder, folder != "" && !isTooWide(folder, home)
}

// homes contains folders that usually contain home folders. roots contains the usual home folders in other places.
var homes, roots = []string{"/home", "/Users", "/var/home", "/export/home"}, []string{"/root", "/var/root"}

// isTooWide reports whether a path is the root, the current folder, a home folder, or a folder that contains home
// folders. The current folder is too wide because a program often starts in the home folder of its user.
func isTooWide(text, home string) bool {
	p, err := locator.ParsePath(text)
	if err != nil {
		return true
	}
	clean := p.String()
	if clean == "/" || clean == "." {
		return true
	}
	if parent := clean[:max(0, strings.LastIndexByte(clean, '/'))]; slices.Contains(homes, parent) {
		return true
	}
	return slices.ContainsFunc(slices.Concat(homes, roots, []string{home}), func(one string) bool {
		below, err := locator.ParsePath(one)
		if err != nil {
			return false
		}
		contains, err := below.Within(p)
		return err == nil && contains
	})
}

// onlyDots reports whether a string is not empty and consists only of dots, slashes, tildes and spaces. Such strings
// are names of the root, the current folder, its parents or the home folder.
func onlyDots(text string) bool { return text != "" && strings.Trim(text, "./~ ") == "" }
