package edge

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
)

// withoutServer is a server's answer to initialize, or to server/discover, as a caller reads it that can use nothing of
// the server: which revisions and features there are, and nothing that the server says of itself. The gateway answers
// in the server's place.
func (x *exchange) withoutServer(answer *gate.Answer) (*gate.Answer, error) {
	if !answer.Result.Present() {
		return answer, nil
	}
	var said, result map[string]jsontext.Value
	if err := json.Unmarshal(answer.Result.Of(answer.Raw), &said); err != nil {
		return nil, err
	}
	result = make(map[string]jsontext.Value)
	for _, key := range []string{"protocolVersion", "capabilities", "supportedVersions", "resultType", "ttlMs", "cacheScope"} {
		if value, is := said[key]; is {
			result[key] = value
		}
	}
	if answer.ProtocolVersion.Present() { // which requires a name (MCP 2025-11-25, Lifecycle)
		own, err := json.Marshal(x.hubInfo())
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
	return gate.ReadAnswer(raw, gate.AnswerLimits())
}
