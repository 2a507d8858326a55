package abi_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/abi"
)

// TestDecode_IsStrict checks that an envelope from a guest is refused if it has unknown or duplicate fields, or values
// of the wrong type.
func TestDecode_IsStrict(t *testing.T) {
	t.Parallel()
	got, err := abi.Decode([]byte(`{"kind":"fs","sequence":7,"op":"read_file","path":"a"}`))
	if err != nil || got.Kind != abi.FS || got.Sequence != 7 || got.Op != "read_file" || got.Path != "a" {
		t.Errorf("%+v, %v", got, err)
	}
	for text, says := range map[string]string{
		``:                                    "not return a valid envelope",
		`{}`:                                  "an unknown kind",
		`{"kind":"exec"}`:                     "an unknown kind",
		`{"kind":"fs","kind":"finish"}`:       "duplicate",
		`{"kind":"fs","shell":"x"}`:           "at /shell: the field is not known",
		`{"kind":"fs","path":7}`:              `at "/path": a JSON number is not allowed here`,
		`{"kind":"fs"} {"kind":"finish"}`:     "not return a valid envelope",
		"{\"kind\":\"fs\",\"path\":\"\xff\"}": "not return a valid envelope",
	} {
		if _, err := abi.Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s is refused with %v, want %q", text, err, says)
		}
	}
	text, err := abi.Encode(abi.HostEnvelope{Kind: abi.Result, Sequence: 3, Error: &abi.Error{Code: "file_unknown", Message: "no a"}})
	if want := `{"kind":"effect_result","sequence":3,"error":{"code":"file_unknown","message":"no a"}}`; err != nil || string(text) != want {
		t.Errorf("%s, %v; want %s", text, err, want)
	}
}
