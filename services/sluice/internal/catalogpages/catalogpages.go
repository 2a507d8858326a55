// Package catalogpages writes the catalog of tools for people and programs: as a static site that works from a folder
// without a network, as Markdown, and as one JSON document. Equal catalogs give equal bytes.
//
// Names, descriptions and definitions come from untrusted servers. Wherever they are written, they stay text: hidden
// characters are shown as escapes, and nothing in them becomes markup, a link, a script or a path.
package catalogpages

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// Catalogue is the catalog to write. It is not changed.
type Catalogue struct {
	// Servers are the servers, in any order. A server that only Tools name gets a page, too.
	Servers []*policyv1.CatalogServer
	// Tools are the tools, in any order: whole pages, with their parameters, evidence, history and advice.
	Tools []*policyv1.CatalogTool
	// ListFaults are the reasons why parts of servers' lists are hidden from clients, by server, one line each.
	ListFaults map[string][]string
	// Made is when the catalog was read. Every page shows it, in UTC.
	Made time.Time
}

// ErrTwice means that a catalog has two servers of one name, or a server two tools of one name, so that a page would be
// ambiguous.
var ErrTwice = errors.New("the name stands twice in the catalogue")

// contents is a sorted catalog. stem is the file name of a server's or tool's page, without extension.
type contents struct {
	made    time.Time
	servers []*server
	tools   int
}

type server struct {
	*policyv1.CatalogServer

	stem  string
	tools []*tool
	// faults are the reasons why parts of the server's lists are hidden from clients, one line each.
	faults []string
}

type tool struct {
	*policyv1.CatalogTool

	stem string
	of   *server
}

// arrange sorts a catalog by the names of servers and tools.
func arrange(c Catalogue) (*contents, error) {
	known := make(map[string]*server, len(c.Servers))
	for _, s := range c.Servers {
		if known[s.GetName()] != nil {
			return nil, fmt.Errorf("server %q: %w", s.GetName(), ErrTwice)
		}
		known[s.GetName()] = &server{CatalogServer: s, stem: stem(s.GetName()), faults: c.ListFaults[s.GetName()]}
	}
	for _, t := range c.Tools {
		s := known[t.GetServer()]
		if s == nil {
			s = &server{CatalogServer: &policyv1.CatalogServer{Name: t.GetServer()}, stem: stem(t.GetServer())}
			known[t.GetServer()] = s
		}
		s.tools = append(s.tools, &tool{CatalogTool: t, stem: stem(t.GetName()), of: s})
	}
	out := &contents{made: c.Made.UTC(), tools: len(c.Tools)}
	for _, s := range known {
		out.servers = append(out.servers, s)
	}
	slices.SortFunc(out.servers, func(a, b *server) int { return cmp.Compare(a.GetName(), b.GetName()) })
	for _, s := range out.servers {
		if err := s.sort(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// sort sorts a server's tools by name.
func (s *server) sort() error {
	slices.SortFunc(s.tools, func(a, b *tool) int { return cmp.Compare(a.GetName(), b.GetName()) })
	for i, t := range s.tools[min(1, len(s.tools)):] {
		if s.tools[i].GetName() == t.GetName() {
			return fmt.Errorf("tool %q of server %q: %w", t.GetName(), s.GetName(), ErrTwice)
		}
	}
	return nil
}

// each yields all tools, in order.
func (c *contents) each(yield func(*tool) bool) {
	for _, s := range c.servers {
		for _, t := range s.tools {
			if !yield(t) {
				return
			}
		}
	}
}
