package bench

import (
	"fmt"
	"slices"
	"strings"
)

// Floor is the name of the cell with which all other cells are compared.
const Floor = "proxy"

// Cell describes one path that a call can take from the load generator to the echo server.
type Cell struct {
	// Name identifies the cell on the command line.
	Name string
	// Title describes the cell in the report.
	Title string
	// Targets maps each number of callers to the minimum ratio of the cell's rate to the rate of the cell [Floor]. It
	// may be nil.
	Targets map[int]float64
	// Baseline is the name of the cell that makes the same call under a rule without conditions, or with a token
	// instead of a JWT. MinShare is the minimum ratio of the cell's rate to the rate of that cell. Both fields have
	// their zero values if the cell has no such comparison.
	Baseline string
	MinShare float64

	// site is the name of the site, which is the group of processes that serves the cell. If base is true, the site
	// runs the programs of the base commit.
	site string
	base bool
	tool string
	// If allPrincipals is true, the callers make calls for each principal in turn.
	allPrincipals bool
	// mark is a string that every correct response contains and that no other response contains.
	mark string
}

// These constants are the marks of the responses. markEchoed is part of the content from the echo server, and
// markDenied is the code of a denied call.
const (
	markEchoed = `"text":"echo: ` + echoText + `"`
	markDenied = `denied_by_rule`
)

// These constants are tools of the echo server. The echo server treats all tools in the same way, but the policy does
// not.
const (
	toolAllowed     = "echo"
	toolLimited     = "echo_limited"
	toolDenied      = "echo_denied"
	toolConditional = "echo_conditional"
)

// Cells returns all cells, in the order of the report.
func Cells() []Cell {
	cells := []Cell{
		{Name: "direct", Title: "the echo server itself", site: siteEcho, tool: toolAllowed, mark: markEchoed},
		{Name: Floor, Title: "`httputil.ReverseProxy`, tuned transport", site: siteProxy, tool: toolAllowed, mark: markEchoed},
		{Name: "lean", Title: "the leanest gateway on `net/http`: whole messages, no decisions, no records", site: siteLean, tool: toolAllowed, mark: markEchoed},
		{
			Name: "up", Title: "`sluice up`, allowed, no limits", site: siteUp, tool: toolAllowed, mark: markEchoed,
			Targets: map[int]float64{1: 0.90, 32: 1.00, 256: 1.20},
		},
		{
			Name: "up-limit", Title: "`sluice up`, with a session limit in memory", site: siteUp, tool: toolLimited, mark: markEchoed,
			Targets: map[int]float64{1: 0.85, 32: 0.95, 256: 1.10},
		},
		{
			Name: "up-condition", Title: "`sluice up`, allowed by a rule with three conditions on arguments", site: siteUp, tool: toolConditional,
			mark: markEchoed, Baseline: "up", MinShare: 0.90,
		},
		{
			Name: "up-jwt", Title: "`sluice up`, allowed, each caller with a JWT of 1 KiB", site: siteUpJWT, tool: toolAllowed,
			mark: markEchoed, Baseline: "up", MinShare: 0.98,
		},
		{Name: "up-deny", Title: "`sluice up`, denied", site: siteUp, tool: toolDenied, allPrincipals: true, mark: markDenied},
		{
			Name: "apart", Title: "separate processes, allowed, no limits", site: siteApart, tool: toolAllowed, mark: markEchoed,
			Targets: map[int]float64{1: 0.60, 32: 0.80, 256: 0.95},
		},
		{
			Name: "apart-limit", Title: "separate processes, with a session limit in memory", site: siteApart, tool: toolLimited, mark: markEchoed,
			Targets: map[int]float64{1: 0.50, 32: 0.70, 256: 0.85},
		},
		{
			Name: "apart-condition", Title: "separate processes, allowed by a rule with three conditions on arguments", site: siteApart,
			tool: toolConditional, mark: markEchoed, Baseline: "apart", MinShare: 0.60,
		},
	}
	for _, c := range cells {
		if len(c.Targets) > 0 {
			c.Name, c.Title, c.site, c.Targets = c.Name+askedSuffix, c.Title+", no decision cached", c.site+askedSuffix, nil
			cells = append(cells, c)
		}
	}
	return append(cells,
		Cell{Name: siteThv, Title: "ToolHive, `thv proxy`: one server, no policy", site: siteThv, tool: toolAllowed, mark: markEchoed},
		Cell{Name: siteVMCP, Title: "ToolHive, `vmcp`: many servers, no policy", site: siteVMCP, tool: peerTool, mark: markEchoed})
}

// selectCells returns the named cells and the cell Floor, in the order of the report. If no names are given, it returns
// all cells.
func selectCells(names []string) ([]Cell, error) {
	all := Cells()
	known := make([]string, len(all))
	for i, c := range all {
		known[i] = c.Name
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("no cell is named %q: the cells are %s", name, strings.Join(known, ", "))
		}
	}
	if len(names) == 0 {
		return all, nil
	}
	return slices.DeleteFunc(all, func(c Cell) bool {
		return c.Name != Floor && !slices.Contains(names, c.Name)
	}), nil
}

// baseSuffix is the suffix in the names of cells that are measured with the programs of the base commit.
const baseSuffix = "-base"

// withBase adds, after each cell of the mesh, the same cell with the programs of the base commit.
func withBase(cells []Cell) []Cell {
	var all []Cell
	for _, c := range cells {
		all = append(all, c)
		if c.site == siteUp || c.site == siteApart {
			c.Name, c.Title, c.base, c.Targets = c.Name+baseSuffix, c.Title+", before", true, nil
			all = append(all, c)
		}
	}
	return all
}
