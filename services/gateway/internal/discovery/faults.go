package discovery

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/gateway/internal/aggregate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcpschema"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// maxFaults limits how many faults are stored for one list.
const maxFaults = 100

// A Fault explains why clients do not receive a tool in a server's list.
type Fault struct {
	// Tool is the tool's name as the server has sent it, truncated to 128 bytes. It is empty if the tool has no
	// readable name, or if the fault affects the whole list.
	Tool string
	// Why describes the fault, without any text from the server.
	Why string
	// AggregateOnly is true if the tool is missing only from lists that combine the tools of many servers.
	AggregateOnly bool
}

// listError explains why a list cannot be read, without any text from the server.
type listError struct{ why string }

// Error implements error.
func (e *listError) Error() string { return ErrList.Error() + ": " + e.why }

// Unwrap returns the two errors that every listError wraps.
func (e *listError) Unwrap() []error { return []error{upstream.ErrNoAnswer, ErrList} }

// ListFault explains why a list cannot be read, without any text from the server. It returns "" if err has another
// cause.
func ListFault(err error) string {
	if bad, ok := errors.AsType[*listError](err); ok {
		return "the list of tools can't be read: " + bad.why
	}
	return ""
}

// Faults returns the faults in the newest list of the server's tools. If the server's list cannot be read, Faults
// returns one fault, which explains why.
func (s *Server) Faults() []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why := ListFault(s.err); why != "" {
		return []Fault{{Why: why}}
	}
	if s.found == nil {
		return nil
	}
	return s.found.Faults
}

// conformTools returns the form of a server's list that the gateway joins with the lists of other servers, and the
// faults of the server's tools.
func conformTools(server string, list *jsonrpc.Answer, aliases aggregate.ToolAliases) (*jsonrpc.Answer, []Fault, error) {
	listed := make(map[string]int, len(list.Tools))
	for _, t := range list.Tools {
		listed[t.Name]++
	}
	var faults []Fault
	note := func(t jsonrpc.Tool, why string, jointOnly bool) {
		if len(faults) < maxFaults {
			faults = append(faults, Fault{Tool: strings.ToValidUTF8(t.Name[:min(len(t.Name), maxFaultName)], ""), Why: why, AggregateOnly: jointOnly})
		}
	}
	var edits []jsonrpc.Edit
	gone := make([]bool, len(list.Tools))
	twice := make(map[string]bool)
	for i, t := range list.Tools {
		_, one := aliases.DisplayName(server, t.Name)
		element, why := mcpschema.Conform("tools", t.Definition.Of(list.Raw))
		switch {
		case t.Name == "":
			note(t, "its name is missing or ambiguous", false)
		case listed[t.Name] > 1 && twice[t.Name]:
		case listed[t.Name] > 1:
			twice[t.Name] = true
			note(t, fmt.Sprintf("its name occurs %d times", listed[t.Name]), false)
		case !jsonrpc.IsToolName(t.Name):
			note(t, "it can't be called: a name must have 1 to 128 letters, digits and _ - . /", false)
		case why != "":
			note(t, "it is not a valid tool: "+why, true)
		case !one:
			note(t, "its alias in lists of all servers would be the same as that of another tool", true)
		case len(element) != t.Definition.End-t.Definition.Start:
			edits = append(edits, jsonrpc.Edit{Span: t.Definition, With: element})
		}
		gone[i] = why != ""
	}
	out := *list
	if out.Tools = slices.Clone(list.Tools); len(edits) > 0 {
		raw, err := jsonrpc.ApplyEdits(list.Raw, edits...)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, err)
		}
		read, err := jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, err)
		}
		out = *read
	}
	for i := range out.Tools {
		if gone[i] {
			out.Tools[i].Name = "" // a tool without a name appears in no list
		}
	}
	return &out, faults, nil
}

// maxFaultName limits the length of a stored tool name, in bytes.
const maxFaultName = 128
