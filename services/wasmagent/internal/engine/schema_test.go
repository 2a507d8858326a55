package engine_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/guesttest"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/abi"
)

// The envelopes of the host and of the guest named script conform to the published schema, and invalid envelopes do
// not.
func TestEnvelopes_AreValidBySchema(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../../sdk/abi/abi-1.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	holds := func(text []byte) error {
		var v any
		if err := json.Unmarshal(text, &v); err != nil {
			return err
		}
		return resolved.Validate(v)
	}
	in := startInstance(t, compileModule(t, guesttest.Module(t, guesttest.Guests+"script")))
	prompt := "emit a\nwrite a b\nread a\nedit a b => c\nlist\ntodo pending x\ntool s n {\"a\":1}\nask why\nsleep 1s\nread z\nsay x\ndone"
	give := []abi.HostEnvelope{{Kind: abi.Start, Instructions: "be brief", MaxTurns: 3}, {Kind: abi.Prompt, Input: prompt}}
	kinds := make(map[string]bool)
	for i := 0; i < len(give); i++ {
		give[i].Sequence = int64(i + 1)
		envelope, err := abi.Encode(give[i])
		if err != nil {
			t.Fatal(err)
		}
		answer, _, err := in.Step(t.Context(), envelope, plentyFuel)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range [][]byte{envelope, answer} {
			if err := holds(text); err != nil {
				t.Errorf("%s: %v", text, err)
			}
		}
		out, err := abi.Decode(answer)
		if err != nil {
			t.Fatal(err)
		}
		if kinds[out.Kind] = true; out.Kind != abi.Finish {
			results := map[string]string{"read_file": `"b"`, "list_files": `["a"]`}
			next := abi.HostEnvelope{Kind: abi.Result}
			if result := results[out.Op]; result != "" {
				next.Result = []byte(result)
			}
			if out.Kind == abi.Model || out.Kind == abi.Tool || out.Path == "z" {
				next = abi.HostEnvelope{Kind: abi.Result, Error: &abi.Error{Code: "not_offered", Message: "no"}}
			}
			give = append(give, next)
		}
	}
	if len(kinds) != 7 {
		t.Errorf("only %v were returned", kinds)
	}
	for _, wrong := range []string{`{}`, `{"kind":"exec","sequence":1}`, `{"kind":"fs","sequence":1,"op":"delete"}`, `{"kind":"finish","sequence":0}`, `{"kind":"todo","sequence":1,"todos":[{"content":"x","status":"blocked"}]}`, `{"kind":"emit","sequence":1,"shell":"x"}`} {
		if holds([]byte(wrong)) == nil {
			t.Errorf("%s is valid under the schema", wrong)
		}
	}
}
