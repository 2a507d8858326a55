package classify

import (
	"slices"
	"strings"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// programs are names of parameters that take what is run.
var programs = set("command cmd commands script shellcommand shell_command javascript js sql statement statements")

// sources are names of parameters that take what is run where the verbs do not say that it is
// only looked at.
var sources = set("code expression function sourcecode source_code program")

// byParameters takes parameters by which callers hand over what is run.
func (c *finding) byParameters() {
	lead := c.leads()
	for _, p := range c.tool.Parameters {
		name := strings.ToLower(p.Name)
		if words := nameWords(p.Name); !programs[name] && len(words) > 1 && words[len(words)-1].text != "id" {
			name = words[len(words)-1].text // python_code, bashCommand
			if name == "statement" || name == "statements" {
				name = ""
			}
		}
		switch {
		case len(p.Values) > 0, !programs[name] && !sources[name], lead == read && c.bothRead() && !asks(c.inName) && !asks(c.inText):
			continue
		case sources[name] && lead != execute && lead != unknown: // "code" is as often a number of something
			continue
		}
		weight := 0.6
		if (lead == write || lead == read) && !asks(c.inName) && !asks(c.inText) { // and what they hand over may be what it is about
			weight = 0.3
		}
		c.add(&policyv1.Evidence{
			Path: "/inputSchema/properties" + pointer(p.Name), InKey: true, Quote: p.Name, Category: execute, Weight: weight,
			Meaning: "callers hand over what it runs",
		})
		return
	}
}

// asks tells whether a verb is to put a query, which may change something.
func asks(s *said) bool { return s != nil && s.base == "query" }

// bothRead tells whether name and description both say that it reads.
func (c *finding) bothRead() bool {
	return c.inName != nil && c.inText != nil && c.inName.category == read && c.inText.category == read
}

// targets are names of parameters, or parts of them, that say where something is to be written.
var targets = set("output out destination dest save target")

var places = set("path file filename dir directory folder")

// keeps are verbs of which it depends on a parameter whether they leave something behind.
var keeps = set("take capture screenshot download export render generate record snapshot print convert extract")

// byTargets takes parameters that say where what is made is to be kept.
func (c *finding) byTargets() {
	if !slices.ContainsFunc([]*said{c.inName, c.inText}, func(s *said) bool { return s != nil && (keeps[s.base] || keeps[s.text]) }) {
		return
	}
	for _, p := range c.tool.Parameters {
		words := nameWords(p.Name)
		path := near(words, len(words), places)
		if !path && !near(words, len(words), targets) {
			continue
		}
		weight := 0.3
		if p.Required {
			weight = 0.6
		}
		c.add(&policyv1.Evidence{
			Path: "/inputSchema/properties" + pointer(p.Name), InKey: true, Quote: p.Name, Category: write, Weight: weight,
			Meaning: "what it makes is kept where this says",
		})
		return
	}
}

// removers are names of parameters that make a tool remove something which else looks at it.
var removers = set("delete remove purge wipe clear drop destroy reset prune")

// switches are names of parameters by which callers say that it is meant.
var switches = set("apply dryrun dry_run confirm commit yes")

// byRemovers takes parameters that make a tool remove, and such by which callers say that it is
// meant where the description speaks of removing. Beside a verb that changes, only a switch
// removes more than the verb says.
func (c *finding) byRemovers() {
	lead := c.leads()
	if lead > write {
		return
	}
	for _, p := range c.tool.Parameters {
		if !removers[strings.ToLower(p.Name)] || lead == write && !slices.Contains(p.Types, "boolean") {
			continue
		}
		c.dependsOn = pointer(p.Name)
		c.add(&policyv1.Evidence{
			Path: "/inputSchema/properties" + pointer(p.Name), InKey: true, Quote: p.Name, Category: destructive, Weight: 0.6,
			Meaning: "with this argument it removes",
		})
		return
	}
	if lead == write {
		return
	}
	meant := slices.IndexFunc(c.tool.Parameters, func(p Parameter) bool { return switches[strings.ToLower(p.Name)] })
	removes := slices.IndexFunc(c.text, func(w word) bool {
		_, s, ok := verbOf(w.text)
		return ok && s.category == destructive && !s.weak && !c.denied(w.offset)
	})
	if meant >= 0 && removes >= 0 {
		c.dependsOn = pointer(c.tool.Parameters[meant].Name)
		c.add(&policyv1.Evidence{
			Path: "/description", Offset: int32(c.text[removes].offset), Quote: c.text[removes].raw, Category: destructive, Weight: 0.6,
			Meaning: "it removes where an argument says that it is meant",
		})
	}
}

// byHints takes annotations. They are the server's word: they may make a tool look worse, and
// better only where the server is trusted.
func (c *finding) byHints() {
	readOnly, hasReadOnly := c.tool.Hints["readOnlyHint"]
	ruins, hasRuins := c.tool.Hints["destructiveHint"]
	add := func(name, quote, meaning string, e *policyv1.Evidence) {
		e.Path, e.Quote, e.Meaning = "/annotations/"+name, quote, meaning
		c.add(e)
	}
	support := c.support()
	switch {
	case hasReadOnly && readOnly && c.trusted:
		c.lessen(func(of mcpv1.Category) bool { return of != read })
		add("readOnlyHint", "true", "a trusted server says that it changes nothing", &policyv1.Evidence{Category: read, Weight: 0.9})
	case hasReadOnly && !readOnly && support[read] > 0 && support[read] < 0.6:
		add("readOnlyHint", "false", "the server says that it changes something", &policyv1.Evidence{Category: write, Weight: 0.5})
	}
	if hasRuins && ruins && !readOnly && support[destructive] > 0 {
		add("destructiveHint", "true", "the server says that it may ruin something", &policyv1.Evidence{Category: destructive, Weight: 0.4})
	}
	if hasRuins && !ruins && c.trusted && support[destructive] > 0 {
		c.lessen(func(of mcpv1.Category) bool { return of == destructive })
		add("destructiveHint", "false", "a trusted server says that it only adds", &policyv1.Evidence{Category: write, Weight: 0.7})
	}
}
