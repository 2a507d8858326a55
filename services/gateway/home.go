package gateway

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/homeneeds"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// limitHome hides the HOME of the gateway's user from a server whose configuration has sandbox.home. The entries that
// sandbox.home lists and the files of the server's program stay visible. For all other servers, limitHome changes
// nothing.
func (c *Config) limitHome(name string, rules *sandbox.Rules, files map[string][]string) error {
	entries := c.Servers[name].Sandbox.Home
	if len(entries) == 0 {
		return nil
	}
	home := rules.Home
	if !filepath.IsAbs(home) {
		return errors.New("the gateway's environment has no HOME: set it, or remove the key")
	}
	rules.Private = append(rules.Private, home)
	var read []string
	for _, entry := range entries {
		path := filepath.Join(home, entry)
		read = append(read, path)
		if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
			read = append(read, real)
		}
	}
	for _, path := range files[name] {
		if isBelow(path, home) {
			read = append(read, path)
		}
	}
	rules.Read = append(slices.Clone(rules.Read), outermost(read)...)
	rules.Work = slices.DeleteFunc(rules.Work, func(path string) bool { return path == absolute(home) })
	rules.Home = ""
	return nil
}

// outermost returns the paths that are not inside any other of the given paths.
func outermost(paths []string) (out []string) {
	for _, path := range slices.Compact(slices.Sorted(slices.Values(paths))) {
		if !slices.ContainsFunc(out, func(dir string) bool { return isBelow(path, dir) }) {
			out = append(out, path)
		}
	}
	return out
}

// HomeNotes returns sentences about servers that have a private HOME. A server gets a sentence if its program is known
// to read credentials from HOME, and the private HOME does not contain these credentials. HomeNotes also returns a
// sentence for each entry of sandbox.home that does not exist. The notes depend only on the names of programs and
// packages, because the kernel does not report which files a program tries to open.
func (c *Config) HomeNotes(env config.Env) (notes []string) {
	home := lookUp(env, "HOME")
	if !filepath.IsAbs(home) {
		return nil
	}
	exists := func(entry string) bool {
		_, err := os.Stat(filepath.Join(home, entry))
		return err == nil
	}
	for _, name := range slices.Sorted(maps.Keys(c.Servers)) {
		s := c.Servers[name]
		for _, entry := range s.Sandbox.Home {
			if !exists(entry) {
				notes = append(notes, fmt.Sprintf("servers.%s: sandbox.home names %s, which does not exist in %s", name, entry, home))
			}
		}
		_, ownHome := s.Env["HOME"]
		if len(s.Command) == 0 || s.Dir != "" || ownHome || len(s.Sandbox.Home) > 0 {
			continue
		}
		if needs := slices.DeleteFunc(homeneeds.Detect(s.Command), func(entry string) bool { return !exists(entry) }); len(needs) > 0 {
			notes = append(notes, fmt.Sprintf("servers.%s has a private HOME, and programs like this one read files of yours: if it can't log in, write %s", name, homeneeds.Line(needs)))
		}
	}
	return notes
}
