package jsonrpc_test

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

func TestUnquote_ReadsStringsOnly(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{`"a\u0062"`: "ab", `""`: "", `1`: "", `null`: "", `"a`: "", ``: "", `{"a":"b"}`: ""} {
		if got := jsonrpc.Unquote([]byte(raw)); got != want {
			t.Errorf("%s is %q, want %q", raw, got, want)
		}
	}
}
