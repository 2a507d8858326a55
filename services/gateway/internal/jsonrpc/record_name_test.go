package jsonrpc_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

// Case X9. Records contain shortened names. The parts of a URI that may contain a secret are removed from records.
func TestRecordName_ShortensNamesAndRemovesSecrets(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 200)
	for _, tt := range []struct {
		m    jsonrpc.Message
		want string
	}{
		{jsonrpc.Message{Name: "read_file"}, "read_file"},
		{jsonrpc.Message{Name: long}, strings.Repeat("é", 128) + "…"},
		{jsonrpc.Message{Name: "x" + long}, "x" + strings.Repeat("é", 127) + "…"},
		{jsonrpc.Message{URI: "file:///srv/a%20b"}, "file:///srv/a%20b"},
		{jsonrpc.Message{URI: "https://api.example/v1?key=secret"}, "https://api.example/v1"},
		{jsonrpc.Message{URI: "https://api.example/v1#secret?x"}, "https://api.example/v1"},
		{jsonrpc.Message{URI: "https://api.example?secret"}, "https://api.example"},
		{jsonrpc.Message{URI: "https://ana:secret@api.example/v1"}, "https://api.example/v1"},
		{jsonrpc.Message{URI: "https://ana:se@cret@api.example"}, "https://api.example"},
		{jsonrpc.Message{URI: "https://api.example/@ana"}, "https://api.example/@ana"},
		{jsonrpc.Message{URI: "data:text/plain,secret"}, "data:"},
		{jsonrpc.Message{URI: "DATA:text/plain,secret"}, "DATA:"},
		{jsonrpc.Message{URI: "note:one?secret"}, "note:one"},
		{jsonrpc.Message{URI: "?secret"}, ""},
		{jsonrpc.Message{URI: `https:\\ana:secret@api.example\v1`}, `https:\\api.example\v1`},
		{jsonrpc.Message{URI: "https:/ana:secret@api.example/v1"}, "https:/api.example/v1"},
		{jsonrpc.Message{URI: "https:///ana:secret@api.example"}, "https:///api.example"},
		{jsonrpc.Message{URI: "/srv/a@b"}, "/srv/a@b"},
		{jsonrpc.Message{URI: "srv/a@b"}, "srv/a@b"},
		{jsonrpc.Message{Name: "https://ana:secret@api.example/v1?secret"}, "https://api.example/v1"},
		{jsonrpc.Message{Name: "a//b.c"}, "a//b.c"},
		{jsonrpc.Message{URI: "https://h/" + strings.Repeat("a", 300)}, "https://h/" + strings.Repeat("a", 246) + "…"},
	} {
		if got := jsonrpc.RecordName(&tt.m); got != tt.want {
			t.Errorf("%q %q is recorded as %q, want %q", tt.m.Name, tt.m.URI, got, tt.want)
		}
	}
}
