package clientsetup

import (
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
)

// A Server is a server behind the mesh.
type Server struct {
	Name string
	// Elsewhere is the name of the server in a remote mesh. It is empty for a server of the person's own mesh.
	Elsewhere string
	Definition
	// Existing is true if the mesh's configuration already has the server.
	Existing bool
}

// A Wrap is an entry in a client's file that will be changed to go through the mesh.
type Wrap struct {
	// File is the index of the file in Plan.Files.
	File  int
	Entry clientconfig.Entry
	// Server is the name of the server behind the mesh.
	Server string
	// Added is true if the file does not contain the entry yet. In that case, Entry contains only a name.
	Added bool
}

// A Left is an entry that will not be changed.
type Left struct {
	File   int
	Entry  clientconfig.Entry
	Reason string
}

// A Plan says which entries in clients' files to change so that they go through the mesh. The zero Plan changes
// nothing.
type Plan struct {
	Files   []Found
	Servers []Server
	Wraps   []Wrap
	// Left contains the entries that can't be changed. It does not contain entries that are disabled or that already go
	// through the mesh.
	Left []Left
	// Wrapped is the number of entries that already go through the mesh. Disabled is the number of entries that the
	// client does not use.
	Wrapped, Disabled int
}

// NewPlan plans which entries to change to go through the mesh. The parameter existing contains the servers in the
// mesh's configuration. Entries with equal definitions share a server.
func NewPlan(v Environment, files []Found, existing []Server) *Plan {
	p := &Plan{Files: files}
	for _, s := range existing {
		s.Existing = true
		p.Servers = append(p.Servers, s)
	}
	p.forEach(func(file int, e clientconfig.Entry) { p.add(v, file, e) })
	return p
}

// forEach calls plan for each entry that may be changed. It counts the entries that are disabled or already go through
// the mesh. If an entry only seems to go through the mesh, forEach adds it to p.Left.
func (p *Plan) forEach(plan func(file int, e clientconfig.Entry)) {
	for i, f := range p.Files {
		for _, e := range f.Entries {
			switch {
			case e.Wrapped:
				p.Wrapped++
			case e.Disabled:
				p.Disabled++
			case e.Fault != "":
				p.Left = append(p.Left, Left{i, e, e.Fault})
			default:
				plan(i, e)
			}
		}
	}
}

func (p *Plan) add(v Environment, file int, e clientconfig.Entry) {
	d, reason := v.define(e)
	if reason != "" {
		p.Left = append(p.Left, Left{file, e, reason})
		return
	}
	p.Wraps = append(p.Wraps, Wrap{File: file, Entry: e, Server: p.server(d, e.Name, p.Files[file].File.Client.ID)})
}

// server returns the name of the server with the given definition. If the plan has no such server, it adds one.
func (p *Plan) server(d Definition, entry, client string) string {
	name := serverName(entry)
	for _, s := range p.Servers {
		if s.equal(d) {
			return s.Name
		}
	}
	name = freeName(name, client, func(name string) bool { _, taken := p.Server(name); return taken })
	p.Servers = append(p.Servers, Server{Name: name, Definition: d})
	return name
}

// Server returns the server with the given name.
func (p *Plan) Server(name string) (Server, bool) {
	for _, s := range p.Servers {
		if s.Name == name {
			return s, true
		}
	}
	return Server{}, false
}

// Leave keeps the entries of a server unchanged. It also removes the server from the plan, unless the mesh's
// configuration already contains the server.
func (p *Plan) Leave(server, reason string) {
	var wraps []Wrap
	for _, w := range p.Wraps {
		if w.Server == server {
			p.Left = append(p.Left, Left{w.File, w.Entry, reason})
		} else {
			wraps = append(wraps, w)
		}
	}
	p.Wraps = wraps
	var servers []Server
	for _, s := range p.Servers {
		if s.Name != server || s.Existing {
			servers = append(servers, s)
		}
	}
	p.Servers = servers
}

// New returns the servers that are not in the mesh's configuration yet.
func (p *Plan) New() []Server {
	var out []Server
	for _, s := range p.Servers {
		if !s.Existing {
			out = append(out, s)
		}
	}
	return out
}

// Clients returns the clients whose entries the plan changes, without duplicates.
func (p *Plan) Clients() []clientconfig.Client {
	var out []clientconfig.Client
	seen := make(map[string]bool)
	for _, w := range p.Wraps {
		if c := p.Files[w.File].File.Client; !seen[c.ID] {
			out, seen[c.ID] = append(out, c), true
		}
	}
	return out
}
