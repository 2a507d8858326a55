package document_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"golang.org/x/tools/txtar"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/document"
)

func resolveSchema(t testing.TB) *jsonschema.Resolved {
	t.Helper()
	var s jsonschema.Schema
	if err := json.Unmarshal(document.Schema(), &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return resolved
}

// jsonValue returns a YAML document as a JSON value. ok is false if JSON can't represent the document, for example
// because the document is empty, or has a duplicate key or a tag.
func jsonValue(t *testing.T, text []byte) (value any, ok bool) {
	t.Helper()
	source, err := strictyaml.Parse("p.yaml", text)
	if err != nil || source.Empty() {
		return nil, false
	}
	var read any
	if err := source.Decode(&read); err != nil {
		return nil, false
	}
	raw, err := json.Marshal(read)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &value); err != nil {
		t.Fatal(err)
	}
	return value, true
}

// The schema accepts every document in the examples, and every document in the test archives that the function parse
// accepts.
func TestSchema_AcceptsDocumentsThatLoad(t *testing.T) {
	t.Parallel()
	schema := resolveSchema(t)
	checked := 0
	check := func(name string, text []byte) {
		value, ok := jsonValue(t, text)
		if !ok {
			t.Errorf("%s is not YAML", name)
			return
		}
		if err := schema.Validate(value); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		checked++
	}
	for _, pattern := range []string{"../../testdata/decide/*.txtar", "testdata/tests/*.txtar"} {
		files, _ := filepath.Glob(pattern) // the pattern is a constant
		for _, file := range files {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range archive.Files {
				if filepath.Ext(f.Name) == ".yaml" {
					check(file+" "+f.Name, f.Data)
				}
			}
		}
	}
	for _, pattern := range examplePolicies {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			check(file, text)
		}
	}
	for _, m := range messages(t) {
		if _, err := parse("p.yaml", m.text); err == nil {
			check(m.name, m.text)
		}
	}
	if checked < 80 {
		t.Errorf("only %d documents were checked", checked)
	}
}

// examplePolicies contains file patterns that match the policies shipped with the project.
var examplePolicies = []string{
	"../../../../examples/policies/*.yaml", "../../../../examples/policies/servers/*.yaml", "../../../../examples/claude-flow/*/*.yaml",
	"../../../../examples/notes/policy.yaml", "../../../../deploy/config/policies/*.yaml",
	"../../../sluice/internal/cli/starter.yaml", "../../../sluice/internal/cli/agents.yaml",
}

// exampleSchema is the schema that the examples refer to in their first line. `make docs` writes it.
const exampleSchema = "../../../../examples/policy.schema.json"

func TestSchema_IsWhatTheExamplesName(t *testing.T) {
	t.Parallel()
	if *update {
		if err := os.WriteFile(exampleSchema, document.Schema(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(exampleSchema); err != nil || !bytes.Equal(have, document.Schema()) {
		t.Errorf("%s is out of date: run make docs (%v)", exampleSchema, err)
	}
	for _, pattern := range examplePolicies {
		files, _ := filepath.Glob(pattern) // the pattern is a constant
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			first, _, _ := strings.Cut(string(text), "\n")
			named, ok := strings.CutPrefix(first, "# yaml-language-server: $schema=")
			want := exampleSchema
			if strings.Contains(file, "/cli/") { // `sluice up` writes both files
				want = filepath.Join(filepath.Dir(file), "../policy.schema.json")
			}
			if got := filepath.Join(filepath.Dir(file), named); !ok || got != filepath.Clean(want) {
				t.Errorf("%s begins with %q, which does not name %s", file, first, want)
			}
		}
	}
}

// formMessages matches messages about the form of a document, which a schema can check. beyondSchema maps test
// documents that cause such a message to the reason why the schema nevertheless accepts the document.
var (
	formMessages = regexp.MustCompile(`unknown (key|action|default|dimension|code)|wanted |is required|is empty|has no value|is not supported by this version|" is unknown|is not a number in JSON`)
	beyondSchema = map[string]string{
		"a mode of the document and of a rule":      "until is required only with mode: observe",
		"observe without until":                     "until is required only with mode: observe",
		"tests: a server that the test has to name": "whether server is required depends on the document's server",
		"tests: methods that do not fit":            "which keys are required depends on the method",
	}
)

func TestSchema_RefusesDocumentsOfAnotherForm(t *testing.T) {
	t.Parallel()
	schema := resolveSchema(t)
	refused := 0
	for _, m := range messages(t) {
		value, ok := jsonValue(t, m.text)
		if _, err := parse("p.yaml", m.text); err == nil || !ok || !formMessages.MatchString(m.want) {
			continue
		}
		refused++
		err := schema.Validate(value)
		if why := beyondSchema[m.name]; (err == nil) != (why != "") {
			t.Errorf("%s: the schema says %v, the loader says\n%s(%s)", m.name, err, m.want, why)
		}
	}
	if refused < 30 {
		t.Errorf("only %d documents were refused", refused)
	}
}

// Every key has a description, and every description has a key.
func TestSchema_DescribesEveryKey(t *testing.T) {
	t.Parallel()
	var root any
	if err := json.Unmarshal(document.Schema(), &root); err != nil {
		t.Fatal(err)
	}
	described := make(map[string]bool)
	var walk func(at string, value any)
	walk = func(at string, value any) {
		switch v := value.(type) {
		case []any:
			for _, item := range v {
				walk(at, item)
			}
		case map[string]any:
			properties, _ := v["properties"].(map[string]any)
			for key, property := range properties {
				text, _ := property.(map[string]any)["description"].(string)
				if text == "" {
					t.Errorf("%s.%s has no description: add it to keywords in schema_keywords.go", at, key)
				}
				described[text] = true
				walk(at+"."+key, property)
			}
			for _, key := range []string{"items", "anyOf", "additionalProperties"} {
				walk(at, v[key])
			}
		}
	}
	walk("", root)
	for key, text := range document.KeywordTexts() {
		if !described[text] {
			t.Errorf("no document has the key %s: remove it from keywords in schema_keywords.go", key)
		}
		if !strings.HasSuffix(text, ".") {
			t.Errorf("the description of %s does not end in a period", key)
		}
	}
}
