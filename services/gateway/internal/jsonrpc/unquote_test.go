package jsonrpc_test

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

// TestUnquote_ReadsStringsOnly checks that Unquote returns "" for a value that is not a JSON string.
func TestUnquote_ReadsStringsOnly(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{`"a\u0062"`: "ab", `""`: "", `1`: "", `null`: "", `"a`: "", ``: "", `{"a":"b"}`: ""} {
		if got := jsonrpc.Unquote([]byte(raw)); got != want {
			t.Errorf("%s is %q, want %q", raw, got, want)
		}
	}
}
