package cli

import (
	"fmt"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

// maxFaultsShown is how many faults of a server's lists are shown one by one.
const maxFaultsShown = 10

// listFault is why an element of a server's list, or the whole list, is hidden from clients.
type listFault struct {
	List      string `json:"list"`
	Name      string `json:"name,omitzero"`
	Why       string `json:"why"`
	JointOnly bool   `json:"jointOnly,omitzero"`
}

func faultsOf(s *gatewayv1.ServerStatus) (out []listFault) {
	for _, f := range s.GetListFaults() {
		out = append(out, listFault{f.GetList(), f.GetName(), f.GetWhy(), f.GetJointOnly()})
	}
	return out
}

// whole reports whether the whole list is hidden from clients.
func (f listFault) whole() bool { return f.Name == "" && f.List == "tools" && !f.JointOnly }

func (f listFault) String() string {
	line := f.Why
	if f.Name != "" {
		line = fmt.Sprintf("%s %q: %s", f.List, f.Name, f.Why)
	} else if f.List != "tools" {
		line = f.List + ": " + f.Why
	}
	if f.JointOnly {
		line += " (left out of /mcp)"
	}
	return line
}

// faultLines describes faults. The last line says how many more there are.
func faultLines(all []listFault) (out []string) {
	for i, f := range all {
		if i == maxFaultsShown {
			return append(out, fmt.Sprintf("and %d more", len(all)-i))
		}
		out = append(out, f.String())
	}
	return out
}

// listSymptoms describes what is wrong with a server's lists, and what to do.
func (t *tool) listSymptoms(s *gatewayv1.ServerStatus) (out []symptom) {
	faults := faultsOf(s)
	for i, line := range faultLines(faults) {
		state, do := stateWarning, "the server has to list it in MCP's form and under one name; clients get the others"
		if i < maxFaultsShown && faults[i].whole() {
			state, do = stateProblem, "the server has to be mended; until then clients get what it listed before, or nothing"
		}
		out = append(out, symptom{state, "lists of " + s.GetName(), line, do})
	}
	return out
}
