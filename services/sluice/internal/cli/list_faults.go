package cli

import (
	"fmt"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

const maxFaultsShown = 10

// A listFault is the reason why one entry of a server's list, or the whole list, is hidden from clients.
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

func (f listFault) hidesWholeList() bool { return f.Name == "" && f.List == "tools" && !f.JointOnly }

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

// faultLines returns one line for each fault. If there are more than maxFaultsShown, the last line contains the number
// of the remaining faults.
func faultLines(all []listFault) (out []string) {
	for i, f := range all {
		if i == maxFaultsShown {
			return append(out, fmt.Sprintf("and %d more", len(all)-i))
		}
		out = append(out, f.String())
	}
	return out
}

func (t *tool) checkLists(s *gatewayv1.ServerStatus) (out []checkResult) {
	faults := faultsOf(s)
	for i, line := range faultLines(faults) {
		state, do := stateWarning, "correct the server's list; until then clients get the other elements"
		if i < maxFaultsShown && faults[i].hidesWholeList() {
			state, do = stateProblem, "correct the server's list; until then clients get its previous list, or none"
		}
		out = append(out, checkResult{state, "lists of " + s.GetName(), line, do})
	}
	return out
}
