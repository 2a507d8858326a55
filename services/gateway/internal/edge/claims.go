package edge

import (
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
)

// claims are the abilities of the client at hand of which its server is told.
func (x *exchange) claims(said reach.Standing) []mcp.Ability {
	return x.tellable(x.abilities(), said)
}

// abilities are what the client declares that it can do. In sessions it is asked on streams, so one that reads none can't
// be asked.
func (x *exchange) abilities() []mcp.Ability {
	if x.asksOnStreams && !x.sink.Accepts() {
		return nil
	}
	return abilitiesSaid(x.saysItCan())
}

// saysItCan is what the client at hand says that it can do: in initialize, or in each request of 2026-07-28.
// A caller without an MCP client can do nothing.
func (x *exchange) saysItCan() (has map[string]jsontext.Value) {
	if !x.sink.HasClient() || json.Unmarshal(x.declared, &has) != nil {
		return nil
	}
	return has
}

// saysTasks reports whether a client that says this takes a task for an answer.
func saysTasks(has map[string]jsontext.Value) bool {
	var extensions map[string]jsontext.Value
	return has["extensions"].Kind() == '{' && json.Unmarshal(has["extensions"], &extensions) == nil && extensions[mcp.ExtensionTasks].Kind() == '{'
}

// tellable are those abilities of which the server is told: those whose methods policy does not deny
// to the caller on that server. A gRPC server can't ask.
func (x *exchange) tellable(has []mcp.Ability, said reach.Standing) []mcp.Ability {
	if x.target.Server.Transport() == "grpc" {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(has), func(a mcp.Ability) bool { return !slices.Contains(said.Methods, a.Method) })
}

// abilitiesSaid are the abilities of a client that declares this.
func abilitiesSaid(has map[string]jsontext.Value) (out []mcp.Ability) {
	for _, a := range mcp.Abilities() {
		var options map[string]jsontext.Value
		if has[a.Capability].Kind() != '{' || json.Unmarshal(has[a.Capability], &options) != nil {
			continue
		}
		a.Options = slices.DeleteFunc(a.Options, func(o mcp.Option) bool {
			return options[o.Name].Kind() != jsontext.Value(o.Value).Kind()
		})
		out = append(out, a)
	}
	return out
}

// methodsOf are those by which these abilities are asked for.
func methodsOf(claims []mcp.Ability) (out []string) {
	for _, a := range claims {
		out = append(out, a.Method)
	}
	return out
}
