package catalog

import (
	"errors"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/inputschema"
)

// SchemaOf returns the arguments that the schema in a tool definition declares. It returns the zero Schema if there is
// no schema, or if an unsupported keyword in the schema could declare more arguments.
func SchemaOf(definition string) engine.Schema {
	var tool struct {
		InputSchema map[string]jsontext.Value `json:"inputSchema"`
	}
	if json.Unmarshal([]byte(definition), &tool) != nil || tool.InputSchema == nil {
		return engine.Schema{}
	}
	for _, keyword := range openKeywords {
		if _, has := tool.InputSchema[keyword]; has {
			return engine.Schema{}
		}
	}
	var properties map[string]jsontext.Value
	var required []string
	if json.Unmarshal(tool.InputSchema["properties"], &properties) != nil {
		return engine.Schema{}
	}
	_ = json.Unmarshal(tool.InputSchema["required"], &required) // if the list is invalid, no argument is required
	out := engine.Schema{Arguments: make(map[string]engine.Argument, len(properties)), Closed: argumentNames(definition) != nil}
	for name, property := range properties {
		out.Arguments[name] = engine.Argument{Types: typesOf(property), Required: slices.Contains(required, name)}
	}
	return out
}

// UnusableSchema returns the reason why the input schema in a tool definition can't be used to check arguments, or ""
// if the schema can be used.
func UnusableSchema(definition string) string {
	_, err := inputschema.Compile(definition)
	if unusable, ok := errors.AsType[*inputschema.UnusableError](err); ok {
		return unusable.Reason
	}
	return ""
}

// typesOf returns the types in the keyword `type` of a property's schema, or nil if the keyword is absent or invalid.
func typesOf(schema jsontext.Value) []string {
	var of struct {
		Type jsontext.Value `json:"type"`
	}
	if json.Unmarshal(schema, &of) != nil {
		return nil
	}
	var one string
	if json.Unmarshal(of.Type, &one) == nil {
		return []string{one}
	}
	var several []string
	if json.Unmarshal(of.Type, &several) != nil {
		return nil
	}
	return several
}

// Pinned returns the accepted definition that was listed last, or [Tool.Newest] if no definition is accepted. Calls can
// also use the other accepted definitions.
func (t *Tool) Pinned() *Definition {
	if t == nil {
		return nil
	}
	var best *Definition
	for i := range t.Definitions {
		if d := &t.Definitions[i]; d.State == Accepted && (best == nil || !d.LastSeen.Before(best.LastSeen)) {
			best = d
		}
	}
	if best != nil {
		return best
	}
	return t.Newest()
}

// ToolList returns the tools in the newest whole lists, sorted by name. It returns nil if no whole list has been
// reported.
func (s *Server) ToolList() []engine.ListedTool {
	if s == nil || len(s.Lists) == 0 {
		return nil
	}
	out := []engine.ListedTool{}
	for _, name := range s.ListedNow() {
		c := s.Tools[name].ClassWith(s.Tools[name].Pinned())
		tool := engine.ListedTool{Name: name}
		if category, risk := nameOf(engine.Categories(), int(c.Category)), nameOf(engine.Risks(), int(c.Risk)); category != "" && risk != "" {
			tool.Category, tool.Risk, tool.Tags = category, risk, c.Tags
		}
		out = append(out, tool)
	}
	return out
}
