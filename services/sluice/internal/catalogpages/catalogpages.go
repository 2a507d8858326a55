// Package catalogpages writes the catalog of tools as a static site that works without a network, as Markdown, or as
// one JSON document. Equal catalogs result in equal bytes.
//
// Names, descriptions and definitions come from untrusted servers. All output shows them as plain text, with escapes
// for hidden characters. They never become markup, a link, a script or a path.
package catalogpages

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// Catalogue is the catalog to write. The functions of this package do not modify it.
type Catalogue struct {
	// Servers contains the servers, in any order. A server that occurs only in Tools also gets a page.
	Servers []*policyv1.CatalogServer
	// Tools contains the tools, in any order. Each tool has its parameters, evidence, history and advice, as in the
	// response to CatalogService.GetTool.
	Tools []*policyv1.CatalogTool
	// ListFaults contains the reasons why parts of a server's lists are hidden from clients, by server. Each reason is one
	// line.
	ListFaults map[string][]string
	// Made is the time when the catalog was read. Every page shows it in UTC.
	Made time.Time
}

// ErrTwice means that two servers, or two tools of a server, have the same name. Use errors.Is to compare it.
var ErrTwice = errors.New("the catalog has this name twice")

// sortedCatalog is a catalog that is sorted by name.
type sortedCatalog struct {
	readAt  time.Time
	servers []*server
	tools   int // the number of all tools
}

type server struct {
	*policyv1.CatalogServer

	stem  string
	tools []*tool
	// faults contains the reasons why parts of the server's lists are hidden from clients. Each reason is one line.
	faults []string
}

type tool struct {
	*policyv1.CatalogTool

	stem   string
	server *server
}

// sortCatalog returns a catalog sorted by the names of servers and tools. It may return [ErrTwice].
func sortCatalog(c Catalogue) (*sortedCatalog, error) {
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
		s.tools = append(s.tools, &tool{CatalogTool: t, stem: stem(t.GetName()), server: s})
	}
	out := &sortedCatalog{readAt: c.Made.UTC(), tools: len(c.Tools)}
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

func (s *server) sort() error {
	slices.SortFunc(s.tools, func(a, b *tool) int { return cmp.Compare(a.GetName(), b.GetName()) })
	for i, t := range s.tools[min(1, len(s.tools)):] {
		if s.tools[i].GetName() == t.GetName() {
			return fmt.Errorf("tool %q of server %q: %w", t.GetName(), s.GetName(), ErrTwice)
		}
	}
	return nil
}

// allTools yields all tools, sorted by server and by name.
func (c *sortedCatalog) allTools(yield func(*tool) bool) {
	for _, s := range c.servers {
		for _, t := range s.tools {
			if !yield(t) {
				return
			}
		}
	}
}
