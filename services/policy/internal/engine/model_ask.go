package engine

import (
	"slices"
	"strings"
)

// modelTool is the tool by which the mesh's own agents ask models. It costs money, so a rule for
// every caller, a pattern or a default that allows it counts for those agents alone. Other callers
// need a rule that names the tool, without a pattern, and that says whom it is about.
const modelTool = "wasm_model_ask"

const modelsForAgents = "models are asked by agents of the mesh alone; a rule that names " + modelTool + " and its callers allows others"

// asksModel reports whether another caller than an agent of the mesh asks a model. No subject of a
// token has a colon.
func (c *Call) asksModel() bool {
	caller := &c.Subject.Caller
	return c.OfTool() && c.Tool == modelTool && !strings.HasPrefix(caller.Name, "agent:"+caller.Tenant+"/")
}

// opens reports whether the verdict lets the call run, or asks people whether it may.
func (v *verdict) opens() bool { return v.action == ActionAllow || v.action == ActionRequireApproval }

// namedAsker reports whether a rule that lets the call run names the tool and its caller.
func namedAsker(rules []*rule, call *Call) bool {
	return slices.ContainsFunc(rules, func(r *rule) bool {
		named := slices.ContainsFunc(r.tools, func(g glob) bool { return g.exact && g.prefix == modelTool })
		own := verdict{action: r.Action}
		return named && !r.anyone && own.opens() && r.concerns(&call.Subject.Caller)
	})
}
