package dispatch

import (
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

// AbilitiesFor returns the client's capabilities that the gateway also declares to the server.
func (x *Exchange) AbilitiesFor(access visibility.Access) []mcp.Ability {
	return x.FilterAbilities(x.Abilities(), access)
}

// Abilities returns the capabilities that the client declares. In revisions with sessions, the client receives servers'
// requests on event streams. Therefore, Abilities returns nil if such a client does not accept streams.
func (x *Exchange) Abilities() []mcp.Ability {
	if x.AsksOnStreams && !x.Sink.Accepts() {
		return nil
	}
	return DeclaredAbilities(x.DeclaredCapabilities())
}

// DeclaredCapabilities returns the client's capabilities object. The client sends it in initialize. In revision
// 2026-07-28, the client sends it in each request. DeclaredCapabilities returns nil for a caller without an MCP client.
func (x *Exchange) DeclaredCapabilities() (capabilities map[string]jsontext.Value) {
	if !x.Sink.HasClient() || json.Unmarshal(x.ClientCapabilities, &capabilities) != nil {
		return nil
	}
	return capabilities
}

// AcceptsTasks reports whether a client with these capabilities accepts a task in place of a result.
func AcceptsTasks(capabilities map[string]jsontext.Value) bool {
	var extensions map[string]jsontext.Value
	return capabilities["extensions"].Kind() == '{' && json.Unmarshal(capabilities["extensions"], &extensions) == nil && extensions[mcp.ExtensionTasks].Kind() == '{'
}

// FilterAbilities removes the abilities with methods that the policy denies to the caller on the server. It returns the
// remaining abilities, which the gateway declares to the server. For a gRPC server, it returns nil, because such a
// server can't send requests.
func (x *Exchange) FilterAbilities(abilities []mcp.Ability, access visibility.Access) []mcp.Ability {
	if x.Server.Upstream.Transport() == "grpc" {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(abilities), func(a mcp.Ability) bool { return !access.Has(a.Method) })
}

// DeclaredAbilities parses a client's capabilities object.
func DeclaredAbilities(capabilities map[string]jsontext.Value) (out []mcp.Ability) {
	for _, a := range mcp.Abilities() {
		var options map[string]jsontext.Value
		if capabilities[a.Capability].Kind() != '{' || json.Unmarshal(capabilities[a.Capability], &options) != nil {
			continue
		}
		a.Options = slices.DeleteFunc(a.Options, func(o mcp.Option) bool {
			return options[o.Name].Kind() != jsontext.Value(o.Value).Kind()
		})
		out = append(out, a)
	}
	return out
}

// MethodsOf returns the methods that a server may call if the client declares these capabilities.
func MethodsOf(abilities []mcp.Ability) (out []string) {
	for _, a := range abilities {
		out = append(out, a.Method)
	}
	return out
}
