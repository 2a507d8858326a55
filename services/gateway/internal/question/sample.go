package question

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// checkSampling checks a request with the method sampling/createMessage (MCP 2025-11-25, Sampling).
func (o Offer) checkSampling(params map[string]jsontext.Value) *Error {
	if err := o.checkContext(params); err != nil {
		return err
	}
	tools, _ := o.option(mcp.MethodSample, "tools")
	if tools && hasToolsAndURLs(o.Revision) {
		return nil
	}
	if has(params, "tools") || has(params, "toolChoice") || containsToolUse(params["messages"]) {
		return denied("the client's capabilities for this server do not include tools in sampling (`sampling.tools`), but the request has some")
	}
	return nil
}

// checkContext checks the member includeContext of a request. Before revision 2025-11-25, includeContext was always
// part of sampling, and clients could not declare it separately. If the session uses such a revision, checkContext
// allows includeContext unless the client has requested a revision in which clients can declare it.
func (o Offer) checkContext(params map[string]jsontext.Value) *Error {
	if !has(params, "includeContext") {
		return nil
	}
	switch value, _ := text(params, "includeContext"); value {
	case "none":
		return nil
	case "thisServer", "allServers":
	default:
		return invalid("`includeContext` is not none, thisServer or allServers")
	}
	offered, _ := o.option(mcp.MethodSample, "context")
	implied := isBeforeOptions(o.Revision) && (o.RequestedRevision == "" || isBeforeOptions(o.RequestedRevision))
	if offered || implied || o.Aggregated {
		return nil
	}
	return denied("the client's capabilities for this server do not include context (`sampling.context`), but `includeContext` asks for some")
}

// hasToolsAndURLs reports whether a revision supports sampling with tools and elicitation with URLs.
func hasToolsAndURLs(revision string) bool { return revision == "2025-11-25" || revision == mcp.Modern }

// isBeforeOptions reports whether clients could not declare any options of capabilities in the revision. It returns
// false for an unknown revision, because that revision may be newer.
func isBeforeOptions(revision string) bool {
	return mcp.IsSupported(revision) && !hasToolsAndURLs(revision)
}

func containsToolUse(messages jsontext.Value) bool {
	var all []map[string]jsontext.Value
	if messages.Kind() != '[' || json.Unmarshal(messages, &all) != nil {
		return messages.Kind() == '{' // a parser may take an object for a list with one message
	}
	for _, message := range all {
		for key, content := range message {
			if jsonrpc.Fold(key) == "content" && hasToolContent(content) {
				return true
			}
		}
	}
	return false
}

// hasToolContent reports whether a content block is a tool use or a tool result. For a list, it reports whether any
// block in the list is one.
func hasToolContent(content jsontext.Value) bool {
	var blocks []map[string]jsontext.Value
	switch content.Kind() { //nolint:exhaustive // all other kinds contain no blocks
	case '[':
		if json.Unmarshal(content, &blocks) != nil {
			return true // a block that cannot be parsed may be a tool use
		}
	case '{':
		blocks = make([]map[string]jsontext.Value, 1)
		if json.Unmarshal(content, &blocks[0]) != nil {
			return true
		}
	}
	for _, block := range blocks {
		for key, value := range block {
			if jsonrpc.Fold(key) != "type" || value.Kind() != '"' {
				continue
			}
			kind, err := jsontext.AppendUnquote(nil, value)
			if folded := jsonrpc.Fold(string(kind)); err != nil || folded == "tool_use" || folded == "tool_result" {
				return true
			}
		}
	}
	return false
}
