package clientsetup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
)

// EntryNames returns the sorted names of the servers that a mesh needs to replace all entries in the files. It skips
// entries that are disabled or already go through a mesh.
func EntryNames(files []Found) []string {
	var out []string
	for _, f := range files {
		for _, e := range f.Entries {
			if !e.Wrapped && !e.Disabled {
				out = append(out, serverName(e.Name))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// NewPlanElsewhere plans which entries to replace with servers of a remote mesh. The parameter names contains the names
// of the mesh's servers. An entry is replaced if its name is in names. Entries with the same name and different
// definitions get separate servers in the plan, because each definition must be compared with the mesh's server.
func NewPlanElsewhere(v Environment, files []Found, names []string) *Plan {
	p := &Plan{Files: files}
	p.forEach(func(file int, e clientconfig.Entry) { p.addElsewhere(v, file, e, names) })
	return p
}

func (p *Plan) addElsewhere(v Environment, file int, e clientconfig.Entry, names []string) {
	name := serverName(e.Name)
	leave := func(reason string) { p.Left = append(p.Left, Left{file, e, reason}) }
	if !slices.Contains(names, name) {
		leave(fmt.Sprintf("is not at the mesh: no server that the token may use is called %q", name))
		return
	}
	d, reason := v.define(e)
	if reason == "" {
		reason = d.needsThisMachine()
	}
	if reason != "" {
		leave(reason)
		return
	}
	for _, s := range p.Servers {
		if s.Elsewhere == name && s.equal(d) {
			p.Wraps = append(p.Wraps, Wrap{File: file, Entry: e, Server: s.Name})
			return
		}
	}
	own := p.freeName(name, p.Files[file].File.Client.ID)
	p.Servers = append(p.Servers, Server{Name: own, Elsewhere: name, Definition: d})
	p.Wraps = append(p.Wraps, Wrap{File: file, Entry: e, Server: own})
}

func (p *Plan) freeName(name, client string) string {
	return freeName(name, client, func(name string) bool { _, taken := p.Server(name); return taken })
}

// AddElsewhere adds an entry for each server of a remote mesh to the first file of each client. It adds no entry for a
// server if a file of the client already has an entry with the same name. The given function returns the URL of a
// server.
func (p *Plan) AddElsewhere(names []string, url func(server string) string) {
	has := make(map[[2]string]bool)
	for _, f := range p.Files {
		for _, e := range f.Entries {
			has[[2]string{f.File.Client.ID, serverName(e.Name)}] = true
		}
	}
	done, added := make(map[string]bool), make(map[string]string)
	for i, f := range p.Files {
		client := f.File.Client.ID
		if f.Err != nil || f.File.Scope != clientconfig.User || done[client] {
			continue
		}
		done[client] = true
		for _, name := range names {
			if has[[2]string{client, name}] {
				continue
			}
			if added[name] == "" {
				added[name] = p.freeName(name, client)
				p.Servers = append(p.Servers, Server{Name: added[name], Elsewhere: name, Definition: Definition{URL: url(name)}})
			}
			p.Wraps = append(p.Wraps, Wrap{File: i, Entry: clientconfig.Entry{Name: name}, Server: added[name], Added: true})
		}
	}
}

// needsThisMachine returns the reason why a server of a mesh on another machine can't replace this server, or "" if no
// reason is known. For example, a server with the same tools may work with different files on another machine.
func (d Definition) needsThisMachine() string {
	const wayOut = "write the entry by hand if the mesh has the same files (`sluice stdio --help`)"
	if d.Dir != "" {
		return fmt.Sprintf("works in %s on this machine: %s", d.Dir, wayOut)
	}
	for i, word := range d.Command {
		if _, value, ok := strings.Cut(word, "="); ok && strings.HasPrefix(word, "-") {
			word = value
		}
		if i > 0 && isHere(word) {
			return fmt.Sprintf("uses %s on this machine: %s", word, wayOut)
		}
	}
	for _, v := range d.Env {
		if isHere(v.Value) && !slices.Contains(otherPaths, v.Name) {
			return fmt.Sprintf("uses %s on this machine (%s): %s", v.Value, v.Name, wayOut)
		}
	}
	return ""
}

// otherPaths lists environment variables that contain paths on every machine. These paths do not name the files with
// which a server works.
var otherPaths = []string{"HOME", "USERPROFILE", "TMPDIR", "TMP", "TEMP", "PATH", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// isHere reports whether a word is an absolute path that exists on this machine.
func isHere(word string) bool {
	if !filepath.IsAbs(word) {
		return false
	}
	_, err := os.Stat(word)
	return err == nil
}

// WrappedNames returns the names that [EntryNames] omits because their entries already go through a mesh.
func WrappedNames(files []Found) []string {
	var out []string
	for _, f := range files {
		for _, e := range f.Entries {
			if e.Wrapped {
				out = append(out, serverName(e.Name))
			}
		}
	}
	return out
}
