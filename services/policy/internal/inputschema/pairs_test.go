package inputschema_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/policy/internal/inputschema"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// A pair consists of an input schema and arguments. The pairs are in testdata/ajv/pairs.json.
type pair struct {
	Name      string         `json:"name"`
	Schema    jsontext.Value `json:"schema"`
	Arguments jsontext.Value `json:"arguments"`
	// Differs says why ajv has a different result.
	Differs string `json:"differs"`
}

func readPairs(t testing.TB) []pair {
	t.Helper()
	var pairs []pair
	readJSON(t, "testdata/ajv/pairs.json", &pairs)
	return pairs
}

func readJSON(t testing.TB, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

// check compiles the schema of a pair and checks the arguments against it.
func (p *pair) check() error {
	definition := `{"name":"x"}`
	if p.Schema != nil {
		definition = `{"name":"x","inputSchema":` + string(p.Schema) + `}`
	}
	schema, err := inputschema.Compile(definition)
	if err != nil {
		return err
	}
	return schema.Check(`{"name":"x","arguments":` + string(p.Arguments) + `}`)
}

// testdata/messages.txt contains the messages for all pairs. The flag -update rewrites the file.
func TestCheck_SaysWhichArgumentIsWrong(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	for _, p := range readPairs(t) {
		message := "allowed"
		if err := p.check(); err != nil {
			message = err.Error()
		}
		fmt.Fprintf(&got, "%s\n\t%s\n", p.Name, message)
	}
	const golden = "testdata/messages.txt"
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("run the test with -update if the messages are right (-want +got):\n%s", diff)
	}
}

// The results of ajv 8.20.0 for the pairs are known; testdata/ajv/judge.mjs determined them. Arguments that ajv refuses
// are refused here too. Arguments that ajv allows are refused only if the schema does not declare one of them. The
// pairs with the field differs are exceptions. This field says why ajv has a different result.
func TestCheck_AgreesWithAjv(t *testing.T) {
	t.Parallel()
	var judged struct {
		Results map[string]string `json:"results"`
	}
	readJSON(t, "testdata/ajv/ajv.json", &judged)
	pairs := readPairs(t)
	if len(judged.Results) != len(pairs) {
		t.Errorf("ajv.json has %d results for %d pairs: run judge.mjs", len(judged.Results), len(pairs))
	}
	for _, p := range pairs {
		err := p.check()
		undeclared := err != nil && strings.HasSuffix(err.Error(), "is not declared by the schema")
		agrees := err == nil || undeclared
		if judged.Results[p.Name] != "valid" {
			agrees = err != nil
		}
		if agrees == (p.Differs != "") {
			t.Errorf("%s: ajv says %q, and the check %v; differs is %q", p.Name, judged.Results[p.Name], err, p.Differs)
		}
	}
}
