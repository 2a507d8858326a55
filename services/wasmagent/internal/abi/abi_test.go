package abi_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/abi"
)

// TestEnvelopes checks that envelopes of a guest are parsed strictly.
func TestEnvelopes(t *testing.T) {
	t.Parallel()
	got, err := abi.Read([]byte(`{"kind":"fs","sequence":7,"op":"read_file","path":"a"}`))
	if err != nil || got.Kind != abi.FS || got.Sequence != 7 || got.Op != "read_file" || got.Path != "a" {
		t.Errorf("%+v, %v", got, err)
	}
	for text, says := range map[string]string{
		``:                                    "no envelope",
		`{}`:                                  "no kind that is known",
		`{"kind":"exec"}`:                     "no kind that is known",
		`{"kind":"fs","kind":"finish"}`:       "duplicate",
		`{"kind":"fs","shell":"x"}`:           "at /shell: such a field is not known",
		`{"kind":"fs","path":7}`:              `at "/path": a JSON number does not fit`,
		`{"kind":"fs"} {"kind":"finish"}`:     "no envelope",
		"{\"kind\":\"fs\",\"path\":\"\xff\"}": "no envelope",
	} {
		if _, err := abi.Read([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s is %v, want %q", text, err, says)
		}
	}
	text, err := abi.Write(abi.In{Kind: abi.Result, Sequence: 3, Error: &abi.Error{Code: "file_unknown", Message: "no a"}})
	if want := `{"kind":"effect_result","sequence":3,"error":{"code":"file_unknown","message":"no a"}}`; err != nil || string(text) != want {
		t.Errorf("%s, %v; want %s", text, err, want)
	}
}
