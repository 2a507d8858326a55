package engine

import (
	"slices"
	"strings"
)

// modelTool is the tool with which the mesh's own agents ask models. The tool costs money, so a default, a rule with a
// pattern and a rule for every caller allow it only to those agents. For other callers a rule must name the callers,
// and must name the tool without a pattern.
const modelTool = "wasm_model_ask"

const modelsForAgents = "models are asked by agents of the mesh alone; a rule that names " + modelTool + " and its callers allows others"

// asksModel reports whether the call uses modelTool and its caller is not one of the mesh's own agents. The names of
// agents start with "agent:"; the configuration accepts no token with such a subject.
func (c *Call) asksModel() bool {
	caller := &c.Subject.Caller
	return c.OfTool() && c.Tool == modelTool && !strings.HasPrefix(caller.Name, "agent:"+caller.Tenant+"/")
}

// opens reports whether the verdict allows the call or requires approval for it.
func (v *verdict) opens() bool { return v.action == ActionAllow || v.action == ActionRequireApproval }

// namedAsker reports whether a rule that allows the call, or requires approval for it, names the tool and its caller.
func namedAsker(rules []*rule, call *Call) bool {
	return slices.ContainsFunc(rules, func(r *rule) bool {
		named := slices.ContainsFunc(r.tools, func(g glob) bool { return g.exact && g.prefix == modelTool })
		own := verdict{action: r.Action}
		return named && !r.anyone && own.opens() && r.concerns(&call.Subject.Caller)
	})
}
