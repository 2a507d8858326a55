// Package question checks the requests that servers send to clients. These are sampling/createMessage,
// elicitation/create and roots/list, and the equivalent parts of results in revision 2026-07-28 and of the error
// -32042. A server may use only the capabilities that the client offers and that the protocol revision defines.
package question

import (
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// Offer contains the client's capabilities that were declared to the server. The zero Offer allows no request. It is
// read-only.
type Offer struct {
	// Abilities are the client's capabilities, with the options that were declared to the server.
	Abilities []mcp.Ability
	// Revision is the protocol revision of the server's requests.
	Revision string
	// RequestedRevision is the revision that the client has requested. It can be newer than Revision. If it is empty, the
	// client has requested Revision.
	RequestedRevision string
	// Aggregated is true if the client uses several servers at one URL. An elicitation request must then contain a
	// message to which the gateway can add the server's name. The caller of Check must replace the value of
	// includeContext with "none", as package aggregate does.
	Aggregated bool
}

// Error is the reason why a server may not send a request. Detail never contains text from the request.
type Error struct {
	// Code is METHOD_DENIED if the client does not offer something that the request needs. It is METHOD_INVALID if the
	// request violates MCP.
	Code commonv1.Code
	// Method is true if the client does not offer the request's method at all.
	Method bool
	// Detail is a sentence that explains the reason. It does not end with a full stop.
	Detail string
}

func (e *Error) Error() string { return e.Detail }

func denied(detail string) *Error {
	return &Error{Code: commonv1.Code_CODE_METHOD_DENIED, Detail: detail}
}

func invalid(detail string) *Error {
	return &Error{Code: commonv1.Code_CODE_METHOD_INVALID, Detail: detail}
}

// Methods returns the methods of the requests that the server may send.
func (o Offer) Methods() (out []string) {
	for _, a := range o.Abilities {
		if a.Method != mcp.MethodElicit || o.Revision == mcp.Modern || mcp.HasFormElicitation(o.Revision) {
			out = append(out, a.Method)
		}
	}
	return out
}

// Has reports whether the server may send requests with this method.
func (o Offer) Has(method string) bool { return slices.Contains(o.Methods(), method) }

// Check returns the reason why a server may not send a request, or nil if the server may send it. Check accepts all
// requests with methods of extensions.
func (o Offer) Check(m *jsonrpc.Message) *Error {
	if !mcp.AsksClient(m.Method) {
		return nil
	}
	if !o.Has(m.Method) {
		return &Error{Code: commonv1.Code_CODE_METHOD_DENIED, Method: true, Detail: "the client's capabilities for this server do not include this request"}
	}
	params, err := read(m.Params.Of(m.Raw), fields)
	if err != nil {
		return err
	}
	if has(params, "task") {
		return denied("the client's capabilities for this server do not include tasks, but the request has `task`")
	}
	switch m.Method {
	case mcp.MethodSample:
		return o.checkSampling(params)
	case mcp.MethodElicit:
		return o.checkElicitation(params)
	}
	return nil
}

// fields contains the known keys of requests. It maps a case-folded key to the correct key. A key that differs from a
// known key only in case is refused, because a client that ignores case would mistake it for the known key.
var fields = table(
	"_meta", "task",
	"messages", "modelPreferences", "systemPrompt", "includeContext", "temperature", "maxTokens", "stopSequences", "metadata", "tools", "toolChoice",
	"mode", "message", "requestedSchema", "url", "elicitationId",
)

func table(names ...string) map[string]string {
	out := make(map[string]string, len(names))
	for _, name := range names {
		out[jsonrpc.Fold(name)] = name
	}
	return out
}

func read(raw []byte, known map[string]string) (map[string]jsontext.Value, *Error) {
	if raw == nil {
		return nil, nil
	}
	var out map[string]jsontext.Value
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, invalid("the request is not an object")
	}
	for key := range out {
		if name, is := known[jsonrpc.Fold(key)]; is && name != key {
			return nil, &Error{Code: commonv1.Code_CODE_FIELD_CASE_VARIANT, Detail: "a key of the request differs from `" + name + "` in case only"}
		}
	}
	return out, nil
}

// has reports whether an object has a member that is not null. Several libraries write null for an absent member.
func has(object map[string]jsontext.Value, key string) bool {
	value, is := object[key]
	return is && value.Kind() != 'n'
}

// text returns the value of a member if it is a string. Otherwise it returns false.
func text(object map[string]jsontext.Value, key string) (string, bool) {
	value := object[key]
	if value.Kind() != '"' {
		return "", false
	}
	out, err := jsontext.AppendUnquote(nil, value)
	return string(out), err == nil
}

// option reports whether the client's capability for a method was declared to the server with the named option.
// declared is true if the capability was declared with any option.
func (o Offer) option(method, name string) (is, declared bool) {
	for _, a := range o.Abilities {
		if a.Method == method {
			return slices.ContainsFunc(a.Options, func(o mcp.Option) bool { return o.Name == name }), len(a.Options) > 0
		}
	}
	return false, false
}
