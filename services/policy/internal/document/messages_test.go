package document_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// message is a document with the expected errors or warnings.
type message struct {
	name string
	text []byte
	want string
}

// messages returns the documents of the archive. A file called errors follows each of them.
func messages(t testing.TB) (out []message) {
	t.Helper()
	archive, err := txtar.ParseFile(filepath.Join("testdata", "messages.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(archive.Files); i += 2 {
		if archive.Files[i+1].Name != "errors" {
			t.Fatalf("no file errors follows %q", archive.Files[i].Name)
		}
		out = append(out, message{archive.Files[i].Name, archive.Files[i].Data, string(archive.Files[i+1].Data)})
	}
	return out
}

// testApprovers contains only a few people who may approve.
var testApprovers = &engine.Approvers{
	Deciders: []engine.Principal{{Tenant: "default", Name: "ana", Groups: []string{"finance"}}, {Tenant: "default", Name: "ben"}},
	Callers:  []engine.OwnedAgent{{Principal: engine.Principal{Tenant: "default", Name: "bot"}, Owner: "ana"}},
}

// loadMessages returns the errors or warnings of loading a document.
func loadMessages(t *testing.T, m message) string {
	t.Helper()
	var people *engine.Approvers
	if strings.HasPrefix(m.name, "people: ") {
		people = testApprovers
	}
	set, err := document.ParseSet([]document.File{{Path: "p.yaml", Text: m.text}}, people)
	problems, ok := errors.AsType[strictyaml.Errors](err)
	switch {
	case ok:
	case err != nil:
		t.Fatal(err)
	default:
		problems = set.Warnings
	}
	return problems.Error() + "\n"
}

// TestMessages checks the messages for the documents in testdata/messages.txtar.
func TestMessages(t *testing.T) {
	t.Parallel()
	all := messages(t)
	golden := new(txtar.Archive)
	for _, m := range all {
		got := loadMessages(t, m)
		if strings.TrimSpace(got) == "" {
			t.Errorf("%s has no messages", m.name)
		}
		if got != m.want && !*update {
			t.Errorf("%s gives\n%swant\n%s", m.name, got, m.want)
		}
		golden.Files = append(golden.Files, txtar.File{Name: m.name, Data: m.text}, txtar.File{Name: "errors", Data: []byte(got)})
	}
	if *update {
		if err := os.WriteFile(filepath.Join("testdata", "messages.txtar"), txtar.Format(golden), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// messageSources lists the sources whose strings are messages of the loader. untestedMessages maps strings in these
// sources to a reason why they are not tested: they are not messages, or no document of the archive can cause them.
var (
	messageSources = []string{
		".", "../engine/parse_error.go", "../engine/conditional_check.go", "../engine/names_check.go", "../engine/glob.go", "../engine/approvers.go", "../../../internal/strictyaml/survey.go",
		"../../../internal/strictyaml/source.go", "../condition/check.go", "../condition/error.go", "../condition/misleading_tests.go",
	}
	untestedMessages = map[string]string{
		"an entry under tools has no name":                  "the form has no such key",
		"an entry under tools matches only its tool":        "the form has no such key",
		"another document has the name":                     "TestParseSetNamesTheProblemsOfEveryFile",
		"give each document a different name":               "TestParseSetNamesTheProblemsOfEveryFile",
		"the document can't have the file's name: add name": "TestParseRefusesANameThatTheFileCannotGive",
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
			if strings.HasSuffix(file, "_test.go") {
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
