package dispatch

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

// RedactGreeting returns a server's answer to initialize or server/discover without data that requires permissions on
// the server. The result contains only the server's revisions and capabilities. For initialize, serverInfo describes
// the gateway.
func (x *Exchange) RedactGreeting(answer *jsonrpc.Answer) (*jsonrpc.Answer, error) {
	if !answer.Result.Present() {
		return answer, nil
	}
	var declared, result map[string]jsontext.Value
	if err := json.Unmarshal(answer.Result.Of(answer.Raw), &declared); err != nil {
		return nil, err
	}
	result = make(map[string]jsontext.Value)
	for _, key := range []string{"protocolVersion", "capabilities", "supportedVersions", "resultType", "ttlMs", "cacheScope"} {
		if value, is := declared[key]; is {
			result[key] = value
		}
	}
	if answer.ProtocolVersion.Present() { // MCP requires serverInfo in an answer to initialize (MCP 2025-11-25, Lifecycle)
		own, err := json.Marshal(x.Info())
		if err != nil {
			return nil, err
		}
		result["serverInfo"] = own
	}
	raw, err := json.Marshal(struct {
		Version string                    `json:"jsonrpc"`
		ID      jsontext.Value            `json:"id"`
		Result  map[string]jsontext.Value `json:"result"`
	}{"2.0", answer.ID.Of(answer.Raw), result}, json.Deterministic(true))
	if err != nil {
		return nil, err
	}
	return jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
}

// ServerInfo is the name and version of a server (MCP, Implementation).
type ServerInfo struct {
	Name    string `json:"name"`
	Title   string `json:"title"`
	Version string `json:"version"`
}

// Info returns the gateway's own name and version.
func (x *Exchange) Info() ServerInfo {
	return ServerInfo{Name: "sluice", Title: "Sluice", Version: x.Deps.Version}
}
