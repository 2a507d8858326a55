package gate_test

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
)

// Params are written as sluice/approval/v1/binding.proto has it.
func TestBoundIsWhatTheContractSays(t *testing.T) {
	t.Parallel()
	for params, want := range map[string]string{
		`{"name":"refund","arguments":{"sum":12.50,"ids":[9007199254740993,-0],"to":"\u00e9\/\t"},"_meta":{"progressToken":1}}`: `{"arguments":{"ids":[9007199254740993e0,0e0],"sum":125e-1,"to":"é/\t"},"name":"refund"}`,
		``: `{}`, `{}`: `{}`, `{"arguments":null}`: `{}`, `{"_meta":{}}`: `{}`, `{"_meta":null}`: `{"_meta":null}`,
		`{"arguments":{"arguments":null,"_meta":{"progressToken":1}}}`:                                                                                   `{"arguments":{"_meta":{"progressToken":1e0},"arguments":null}}`,
		`{"_meta":{"traceparent":"x","tracestate":"y","baggage":"z","dev.sluice/run":"r","io.modelcontextprotocol/clientInfo":{},"x/y":[1]},"name":"a"}`: `{"_meta":{"x/y":[1e0]},"name":"a"}`,
		`{"_meta":{"io.modelcontextprotocol/other":1}}`:                                                                                                  `{"_meta":{"io.modelcontextprotocol/other":1e0}}`,
	} {
		if got, err := gate.Bound([]byte(params)); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", params, got, err, want)
		}
	}
	for _, broken := range []string{`[]`, `{"a":1,"a":2}`, `{"a":1`, `{"_meta":{"a":1,"a":2}}`, `7`} {
		if got, err := gate.Bound([]byte(broken)); err == nil {
			t.Errorf("%s: %s", broken, got)
		}
	}
}
