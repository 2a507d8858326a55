package jsonrpc_test

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

func TestRestore_KeepsMembersOfTheAttempt(t *testing.T) {
	t.Parallel()
	const kept = `{"name":"pay","arguments":{"sum":1.50}}`
	for name, tt := range map[string]struct{ came, params, want string }{
		"nothing of the sending": {
			`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"arguments":{"sum":15e-1},"name":"pay"}}`, kept,
			`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":` + kept + `}`,
		},
		"what belongs to the sending": {
			`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"pay","_meta":{"progressToken": "p","dev.sluice/run":"r","other":1,"traceparent":"00"}}}`, kept,
			`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"_meta":{"progressToken":"p","traceparent":"00"},"name":"pay","arguments":{"sum":1.50}}}`,
		},
		"with a _meta that was approved": {
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","_meta":{"progressToken":2,"other":1}}}`, `{"name":"pay","_meta":{"other":1.0}}`,
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","_meta":{"progressToken":2,"other":1.0}}}`,
		},
	} {
		m, err := jsonrpc.Parse([]byte(tt.came), jsonrpc.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		got, err := jsonrpc.Restore(m, tt.params)
		if err != nil || string(got) != tt.want {
			t.Errorf("%s:\n%s, %v; want\n%s", name, got, err, tt.want)
		}
		if _, err := jsonrpc.Parse(got, jsonrpc.DefaultLimits()); err != nil {
			t.Errorf("%s: what was restored is no message: %v", name, err)
		}
	}
}
