package stack

import (
	"encoding/json"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
)

// InitializeRequest is an initialize request of protocol revision 2025-11-25.
const InitializeRequest = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw-client","version":"1"}}}`

// CallRequest returns a tools/call request with the given params, which must be JSON.
func CallRequest(params string) string {
	return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":` + params + `}`
}

// DecisionOf returns the decision in the result of a refused call, or the zero Decision if there is none.
func DecisionOf(t testing.TB, r npmtest.ToolResult) Decision {
	t.Helper()
	var d Decision
	if raw := r.Meta["dev.sluice/decision"]; raw != nil {
		if err := json.Unmarshal(raw, &d); err != nil {
			t.Fatalf("read the decision: %v: %s", err, raw)
		}
	}
	return d
}
