package engine

import (
	"slices"
	"strings"
)

// modelTool is the tool with which the mesh's own agents send requests to models. Calls to this tool cost money.
// Therefore a default, a rule with a pattern for the tool, or a rule for every caller permits the tool only for these
// agents. A rule permits the tool for other callers only if it names the callers, and names the tool without wildcards.
const modelTool = "wasm_model_ask"

const modelRefusal = "only agents of the mesh may call models; a rule that names " + modelTool + " and its callers allows it to others"

// needsModelRule reports whether a caller other than the mesh's own agents calls modelTool. The names of these agents
// start with "agent:". No other caller has such a name, because the configuration refuses tokens with a subject that
// starts with this prefix.
func (c *Call) needsModelRule() bool {
	caller := &c.Subject.Caller
	return c.OfTool() && c.Tool == modelTool && !strings.HasPrefix(caller.Name, "agent:"+caller.Tenant+"/")
}

// permits reports whether the verdict allows the call or requires approval for it.
func (v *verdict) permits() bool { return v.action == ActionAllow || v.action == ActionRequireApproval }

// hasModelRule reports whether a rule that permits the call names both modelTool and the caller.
func hasModelRule(rules []*rule, call *Call) bool {
	return slices.ContainsFunc(rules, func(r *rule) bool {
		named := slices.ContainsFunc(r.tools, func(g glob) bool { return g.exact && g.prefix == modelTool })
		own := verdict{action: r.Action}
		return named && !r.matchesAnyone && own.permits() && call.applies(r, 0)
	})
}
