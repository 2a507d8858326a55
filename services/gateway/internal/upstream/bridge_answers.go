package upstream

import (
	"bytes"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// Greeting translates a server's response to server/discover into a response to initialize. version is the revision in
// the response, and id is its raw id.
func Greeting(discovered *jsonrpc.Answer, version string, id []byte) (*jsonrpc.Answer, error) {
	var said struct {
		Capabilities map[string]jsontext.Value `json:"capabilities"`
		Instructions jsontext.Value            `json:"instructions"`
		Meta         struct {
			Server jsontext.Value `json:"io.modelcontextprotocol/serverInfo"`
		} `json:"_meta"`
	}
	if err := json.Unmarshal(discovered.Result.Of(discovered.Raw), &said); err != nil {
		return nil, err
	}
	if said.Meta.Server.Kind() != '{' {
		said.Meta.Server = jsontext.Value(`{"name":"unknown","version":""}`)
	}
	result := struct {
		Version      string                    `json:"protocolVersion"`
		Capabilities map[string]jsontext.Value `json:"capabilities"`
		Server       jsontext.Value            `json:"serverInfo"`
		Instructions jsontext.Value            `json:"instructions,omitzero"`
	}{version, said.Capabilities, said.Meta.Server, said.Instructions}
	raw, err := json.Marshal(result, json.Deterministic(true))
	if err != nil {
		return nil, err
	}
	return jsonrpc.ReadAnswer(slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), id, []byte(`,"result":`), raw, []byte(`}`)), jsonrpc.AnswerLimits())
}

// Discovered translates a server's response to initialize into a response to server/discover. id is the raw id of the
// response.
func Discovered(greeting *jsonrpc.Answer, id []byte) (*jsonrpc.Answer, error) {
	var said struct {
		Capabilities jsontext.Value `json:"capabilities"`
		Server       jsontext.Value `json:"serverInfo"`
		Instructions jsontext.Value `json:"instructions"`
	}
	if err := json.Unmarshal(greeting.Result.Of(greeting.Raw), &said); err != nil {
		return nil, err
	}
	result := struct {
		Type         string                    `json:"resultType"`
		TTL          int                       `json:"ttlMs"`
		Scope        string                    `json:"cacheScope"`
		Versions     []string                  `json:"supportedVersions"`
		Capabilities jsontext.Value            `json:"capabilities,omitzero"`
		Instructions jsontext.Value            `json:"instructions,omitzero"`
		Meta         map[string]jsontext.Value `json:"_meta,omitzero"`
	}{mcp.ResultComplete, 0, "private", append([]string{mcp.Modern}, mcp.Supported()...), said.Capabilities, said.Instructions, nil}
	if said.Server.Kind() == '{' {
		result.Meta = map[string]jsontext.Value{mcp.MetaServerInfo: said.Server}
	}
	raw, err := json.Marshal(result)
	if err != nil {
		return nil, err
	}
	return jsonrpc.ReadAnswer(slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), id, []byte(`,"result":`), raw, []byte(`}`)), jsonrpc.AnswerLimits())
}

// Complete translates an answer from a server that uses sessions into an answer of revision 2026-07-28. It adds the
// members that mark a result as complete and not cacheable.
func Complete(a *jsonrpc.Answer, method string) (*jsonrpc.Answer, error) {
	if !a.Result.Present() || a.ResultType.Present() {
		return a, nil
	}
	members := `"resultType":"complete"`
	if mcp.IsCacheable(method) && !a.TTL.Present() { // some servers send ttlMs in every revision
		members += `,"ttlMs":0`
	}
	if mcp.IsCacheable(method) && !a.CacheScope.Present() {
		members += `,"cacheScope":"private"`
	}
	if rest := bytes.TrimSpace(a.Raw[a.Result.Start+1 : a.Result.End-1]); len(rest) > 0 {
		members += ","
	}
	at := a.Result.Start + 1
	raw, err := jsonrpc.ApplyEdits(a.Raw, jsonrpc.Edit{Span: jsonrpc.Span{Start: at, End: at}, With: []byte(members)})
	if err != nil {
		return nil, err
	}
	return jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
}
