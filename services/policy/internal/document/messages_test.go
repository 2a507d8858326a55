package document_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// message is a document together with the expected errors or warnings.
type message struct {
	file, name string
	text       []byte
	want       string
}

// messages returns the documents in the archives testdata/messages*.txtar. In the archives, each document is followed
// by a file named errors.
func messages(t testing.TB) (out []message) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "messages*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(archive.Files); i += 2 {
			if archive.Files[i+1].Name != "errors" {
				t.Fatalf("%s: no file errors follows %q", file, archive.Files[i].Name)
			}
			out = append(out, message{file, archive.Files[i].Name, unescape(archive.Files[i].Data), string(archive.Files[i+1].Data)})
		}
	}
	return out
}

// testApprovers contains so few people who may approve calls that some rules require too many approvers.
var testApprovers = &engine.Approvers{
	Deciders: []engine.Principal{{Tenant: "default", Name: "ana", Groups: []string{"finance"}}, {Tenant: "default", Name: "ben"}},
	Callers:  []engine.OwnedAgent{{Principal: engine.Principal{Tenant: "default", Name: "bot"}, Owner: "ana"}},
}

// loadMessages loads a document, and returns the resulting errors or warnings as text.
func loadMessages(t *testing.T, m message) string {
	t.Helper()
	var people *engine.Approvers
	if strings.HasPrefix(m.name, "people: ") {
		people = testApprovers
	}
	files := []document.File{{Path: "p.yaml", Text: m.text}}
	if strings.HasPrefix(m.name, "documents: ") {
		one, other, _ := strings.Cut(string(m.text), "\n---\n")
		files = []document.File{{Path: "p.yaml", Text: []byte(one)}, {Path: "q.yaml", Text: []byte(other)}}
	}
	set, err := document.ParseSet(files, people, testNow)
	problems, ok := errors.AsType[strictyaml.Errors](err)
	switch {
	case ok:
	case err != nil:
		t.Fatal(err)
	default:
		problems = slices.Concat(set.Warnings, runTests(t, set))
	}
	return problems.Error() + "\n"
}

// runTests runs the tests in a set of documents and returns the tests that fail as errors.
func runTests(t *testing.T, set *document.Set) strictyaml.Errors {
	t.Helper()
	failed, err := set.RunTests(t.Context(), time.Minute, testCap, testTimes)
	if err != nil {
		t.Fatal(err)
	}
	return failed
}

// TestMessages checks the messages for the documents in testdata/messages*.txtar.
func TestMessages(t *testing.T) {
	t.Parallel()
	golden := make(map[string]*txtar.Archive)
	for _, m := range messages(t) {
		got := loadMessages(t, m)
		if strings.TrimSpace(got) == "" {
			t.Errorf("%s has no messages", m.name)
		}
		if got != m.want && !*update {
			t.Errorf("%s gives\n%swant\n%s", m.name, got, m.want)
		}
		if golden[m.file] == nil {
			golden[m.file] = new(txtar.Archive)
		}
		golden[m.file].Files = append(golden[m.file].Files, txtar.File{Name: m.name, Data: escape(m.text)}, txtar.File{Name: "errors", Data: []byte(got)})
	}
	for file, archive := range golden {
		if *update {
			if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// statesItself matches messages for which no suggestion is needed because the message itself says what to write.
var statesItself = regexp.MustCompile(`is not between|is longer than|has more than|has no effect without action: |wanted (true or false|a whole number)|is required|the pattern ".*": error parsing regexp|is not a number of at most|the test fails`)

// TestMessages_SayWhereAndWhatToWrite checks that each message has a line and a column. Unless the message itself says
// what to write, it must also have a suggestion.
func TestMessages_SayWhereAndWhatToWrite(t *testing.T) {
	t.Parallel()
	place := regexp.MustCompile(`^p\.yaml:[1-9]\d*:[1-9]\d*: `)
	for _, m := range messages(t) {
		for line := range strings.Lines(m.want) {
			if !place.MatchString(line) {
				t.Errorf("%s: no line and column in %s", m.name, line)
			}
			if !strings.Contains(line, "; ") && !statesItself.MatchString(line) {
				t.Errorf("%s: no suggestion in %s", m.name, line)
			}
		}
	}
}

// In the test archives, ␍ represents a carriage return and ␂ represents a byte order mark, because editors and Git
// change both characters.
var (
	unescapes = strings.NewReplacer("␍", "\r", "␂", "\ufeff")
	escapes   = strings.NewReplacer("\r", "␍", "\ufeff", "␂")
)

func unescape(text []byte) []byte { return []byte(unescapes.Replace(string(text))) }

func escape(text []byte) []byte { return []byte(escapes.Replace(string(text))) }

// messageSources lists the sources that contain the loader's messages as strings. untestedMessages maps strings in
// these sources to the reason why the messages test does not check them. Either they are not messages, or no document
// in the archives can cause them.
var (
	messageSources = []string{
		".", "../engine/parse_error.go", "../engine/conditional_check.go", "../engine/names_check.go", "../engine/overlap.go", "../engine/glob.go", "../engine/approvers.go", "../../../internal/strictyaml/survey.go",
		"../../../internal/strictyaml/source.go", "../../../internal/strictyaml/syntax_hint.go", "../../../internal/strictyaml/decode.go", "../../../internal/strictyaml/scalar.go", "../engine/facts.go", "../condition/condition.go", "../condition/pattern.go",
		"../condition/check.go", "../condition/error.go", "../condition/misleading_tests.go", "../../../internal/observe",
	}
	untestedMessages = map[string]string{
		"an entry under tools has no name":                            "the form has no such key",
		"an entry under tools matches only its tool":                  "the form has no such key",
		"another document has the name":                               "TestParseSetNamesTheProblemsOfEveryFile",
		"give each document a different name":                         "TestParseSetNamesTheProblemsOfEveryFile",
		"the document can't have the file's name: add name":           "TestParseRefusesANameThatTheFileCannotGive",
		"the rule is in the document":                                 "testdata/tests/two_documents.txtar",
		"a test is decided by all documents that are loaded together": "testdata/tests/two_documents.txtar",
		"has more than 1000 tests":                                    "a document of 1,001 tests",
		"compile the policy for its tests":                            "the documents have been checked",
		"the tests of all documents take longer than":                 "TestRunTests_LimitsTheTime", "ran, and the tests of this document took": "TestRunTests_LimitsTheTime",
		"remove tests, or shorten their arguments and the loops of conditions over them": "TestRunTests_LimitsTheTime",
		"run the tests of the policy": "an error of the context",
		// These strings are in panics, or in messages about values that no document contains.
		"strictyaml: Decode into": "a panic", "which is not a pointer": "a panic", "strictyaml: the keys of": "a panic", "are not text": "a panic",
		"strictyaml: can't decode into": "a panic", `a duration such as "30s`: "durations of the configuration",
		"write the unit too, for example": "durations of the configuration", "units are ms, s, m and h": "durations of the configuration",
		"a whole number from": "a small type", "a whole number that is not negative": "an unsigned type", "a whole number from 0 to": "an unsigned type",
		"the tool's definition is new or has changed, and the tool can't be called until an operator has accepted it; an operator reads the change with `sluice catalog diff": "a decision",
		"not stored": "a status", "--discovery` with an account that has this tool, or set `pin: off` for the server": "a decision",
		"the server has sent this definition of the tool to the account of a person, but not to the account with which the mesh lists tools; it is not stored, so it can't be accepted; an operator can run `sluice connect": "a decision",
		"an operator has stopped the tool or its server; it can't be called until an operator ends the quarantine":                                                                                                           "a decision",
		"the arguments that it reads are so large that its evaluation would take too long":                                                                                                                                   "an evaluation",
		"the environment of conditions can't be created": "a panic", "there is no condition": "an evaluation", "and neither true nor false": "an evaluation", "its cost can't be estimated": "CEL estimates every cost",
		"larger than":              "a file of 1 MiB",
		"make a YAML loader":       "its options are constants",
		"unknown anchor":           "how the parser begins a message that is replaced",
		"conditions do not have":   "the parser knows no other functions",
		"a decimal can't be a key": "the parser knows no such maps",
		"(in container '')":        "how the parser ends messages, which is cut off",
	}
)

var verb = regexp.MustCompile(`%[+#]?[a-zA-Z]`)

func TestMessages_AreComplete(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for _, m := range messages(t) {
		all.WriteString(m.want)
	}
	for _, source := range messageSources {
		files := []string{source}
		if !strings.HasSuffix(source, ".go") {
			files, _ = filepath.Glob(filepath.Join(source, "*.go")) // the pattern is a constant
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "schema") { // the schema has descriptions
				continue
			}
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				literal, ok := n.(*ast.BasicLit)
				if !ok || literal.Kind != token.STRING {
					return true
				}
				text, _ := strconv.Unquote(literal.Value) // the parser has accepted the literal
				for _, part := range verb.Split(text, -1) {
					if part = strings.Trim(part, ` ;,:"`); strings.Contains(part, " ") && untestedMessages[part] == "" && !strings.Contains(all.String(), part) {
						t.Errorf("%s: no document of the archive gives %q", file, part)
					}
				}
				return true
			})
		}
	}
}
