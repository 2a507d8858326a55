package gate_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
)

// Case X9. Checks that names that a caller chose are shortened in records, and that URIs are recorded without the parts
// that may contain a secret.
func TestX9WhatIsRecordedOfNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 200)
	for _, tt := range []struct {
		m    gate.Message
		want string
	}{
		{gate.Message{Name: "read_file"}, "read_file"},
		{gate.Message{Name: long}, strings.Repeat("é", 128) + "…"},
		{gate.Message{Name: "x" + long}, "x" + strings.Repeat("é", 127) + "…"},
		{gate.Message{URI: "file:///srv/a%20b"}, "file:///srv/a%20b"},
		{gate.Message{URI: "https://api.example/v1?key=secret"}, "https://api.example/v1"},
		{gate.Message{URI: "https://api.example/v1#secret?x"}, "https://api.example/v1"},
		{gate.Message{URI: "https://api.example?secret"}, "https://api.example"},
		{gate.Message{URI: "https://ana:secret@api.example/v1"}, "https://api.example/v1"},
		{gate.Message{URI: "https://ana:se@cret@api.example"}, "https://api.example"},
		{gate.Message{URI: "https://api.example/@ana"}, "https://api.example/@ana"},
		{gate.Message{URI: "data:text/plain,secret"}, "data:"},
		{gate.Message{URI: "DATA:text/plain,secret"}, "DATA:"},
		{gate.Message{URI: "note:one?secret"}, "note:one"},
		{gate.Message{URI: "?secret"}, ""},
		{gate.Message{URI: `https:\\ana:secret@api.example\v1`}, `https:\\api.example\v1`},
		{gate.Message{URI: "https:/ana:secret@api.example/v1"}, "https:/api.example/v1"},
		{gate.Message{URI: "https:///ana:secret@api.example"}, "https:///api.example"},
		{gate.Message{URI: "/srv/a@b"}, "/srv/a@b"},
		{gate.Message{URI: "srv/a@b"}, "srv/a@b"},
		{gate.Message{Name: "https://ana:secret@api.example/v1?secret"}, "https://api.example/v1"},
		{gate.Message{Name: "a//b.c"}, "a//b.c"},
		{gate.Message{URI: "https://h/" + strings.Repeat("a", 300)}, "https://h/" + strings.Repeat("a", 246) + "…"},
	} {
		if got := gate.Recorded(&tt.m); got != tt.want {
			t.Errorf("%q %q is recorded as %q, want %q", tt.m.Name, tt.m.URI, got, tt.want)
		}
	}
}
