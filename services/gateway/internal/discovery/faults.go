package discovery

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/joint"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcpschema"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// maxFaults is how many faults of a list are kept.
const maxFaults = 100

// A Fault is what keeps a tool of a server's list from clients.
type Fault struct {
	// Tool is its name as the server wrote it, at most 128 bytes; empty if it has none that can be read, or if the whole
	// list is meant.
	Tool string
	// Why says what is wrong, in words that are ours alone.
	Why string
	// JointOnly says that it is kept from lists of many servers alone.
	JointOnly bool
}

// listError says why a list can't be read, in words that are ours alone.
type listError struct{ why string }

// Error implements error.
func (e *listError) Error() string { return ErrList.Error() + ": " + e.why }

// Unwrap has the error be one of its class.
func (e *listError) Unwrap() []error { return []error{upstream.ErrNoAnswer, ErrList} }

// WhyList says why a list can't be read, in words that are ours alone; empty for any other error.
func WhyList(err error) string {
	if bad, ok := errors.AsType[*listError](err); ok {
		return "the list of tools can't be read: " + bad.why
	}
	return ""
}

// Faults returns what keeps tools of the server from clients, as far as is known: why its list can't be read, or what is
// wrong with tools of the newest list.
func (s *Server) Faults() []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why := WhyList(s.err); why != "" {
		return []Fault{{Why: why}}
	}
	if s.found == nil {
		return nil
	}
	return s.found.Faults
}

// conform returns a server's list as it goes into a list of many servers, and what keeps tools from clients.
func conform(server string, list *gate.Answer, aliases joint.Aliases) (*gate.Answer, []Fault, error) {
	listed := make(map[string]int, len(list.Tools))
	for _, t := range list.Tools {
		listed[t.Name]++
	}
	var faults []Fault
	note := func(t gate.Tool, why string, jointOnly bool) {
		if len(faults) < maxFaults {
			faults = append(faults, Fault{Tool: strings.ToValidUTF8(t.Name[:min(len(t.Name), maxFaultName)], ""), Why: why, JointOnly: jointOnly})
		}
	}
	var edits []gate.Edit
	gone := make([]bool, len(list.Tools))
	twice := make(map[string]bool)
	for i, t := range list.Tools {
		_, one := aliases.Shown(server, t.Name)
		element, why := mcpschema.Conform("tools", t.Definition.Of(list.Raw))
		switch {
		case t.Name == "":
			note(t, "it has no name that can be read in one way alone", false)
		case listed[t.Name] > 1 && twice[t.Name]:
		case listed[t.Name] > 1:
			twice[t.Name] = true
			note(t, fmt.Sprintf("its name is there %d times", listed[t.Name]), false)
		case !gate.IsToolName(t.Name):
			note(t, "its name can't be called: a name has 1 to 128 letters, digits and _ - . /", false)
		case why != "":
			note(t, "it has not the form of a tool: "+why, true)
		case !one:
			note(t, "its name among those of all servers would stand for two tools", true)
		case len(element) != t.Definition.End-t.Definition.Start:
			edits = append(edits, gate.Edit{Span: t.Definition, With: element})
		}
		gone[i] = why != ""
	}
	out := *list
	if out.Tools = slices.Clone(list.Tools); len(edits) > 0 {
		raw, err := gate.Splice(list.Raw, edits...)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, err)
		}
		read, err := gate.ReadAnswer(raw, gate.AnswerLimits())
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, err)
		}
		out = *read
	}
	for i := range out.Tools {
		if gone[i] {
			out.Tools[i].Name = "" // which no list shows
		}
	}
	return &out, faults, nil
}

// maxFaultName is how much of a tool's name is kept, in bytes.
const maxFaultName = 128
