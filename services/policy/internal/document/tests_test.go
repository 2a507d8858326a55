package document_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/sluice-mesh/sluice/services/policy/internal/document"
)

// TestRunTests_Stories loads the documents in each archive in testdata/tests together, runs their tests, and compares
// the failures with the archive's file named errors. The flag -update rewrites this file.
func TestRunTests_Stories(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/tests/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var documents []document.File
			last := len(archive.Files) - 1
			for _, f := range archive.Files[:last] {
				documents = append(documents, document.File{Path: f.Name, Text: f.Data})
			}
			set, err := document.ParseSet(documents, nil, testNow)
			if err != nil {
				t.Fatal(err)
			}
			if len(set.Tests) == 0 {
				t.Error("the documents have no tests")
			}
			got := []byte(runTests(t, set).Error() + "\n")
			if *update {
				archive.Files[last].Data = got
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want := archive.Files[last].Data; !bytes.Equal(bytes.TrimSpace(got), bytes.TrimSpace(want)) {
				t.Errorf("the failures are\n%swant\n%s", got, want)
			}
		})
	}
}

// manyTests returns a set with one document, which contains a rule and n tests that want the given action.
func manyTests(tb testing.TB, rule, call string, n int, action string) *document.Set {
	tb.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "version: 1\nserver: s\ndefault: deny\nrules:\n  - %s\ntests:\n", rule)
	for range n {
		fmt.Fprintf(&text, "  - {call: %s, want: {action: %s}}\n", call, action)
	}
	set, err := document.ParseSet([]document.File{{Path: "p.yaml", Text: []byte(text.String())}}, nil, testNow)
	if err != nil {
		tb.Fatal(err)
	}
	return set
}

const allowRefunds = `{name: refunds, match: {tool: refund}, action: allow, when: decimal(args.amount) <= 100 && args.currency == "EUR"}`

func TestParse_FailsForTooManyTests(t *testing.T) {
	t.Parallel()
	text := "version: 1\nserver: s\ndefault: deny\ntests:\n" + strings.Repeat("  - {call: {tool: t}, want: {action: deny}}\n", document.MaxTests+1)
	_, err := parse("p.yaml", []byte(text))
	if want := "p.yaml:4:1: tests: has more than 1000 tests"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestRunTests_LimitsTheNumberOfProblems(t *testing.T) {
	t.Parallel()
	set := manyTests(t, allowRefunds, "{tool: refund, args: {amount: 1, currency: EUR}}", document.MaxTests, "deny")
	if failed := runTests(t, set); len(failed) != 100 {
		t.Errorf("%d problems, want 100", len(failed))
	}
}

func TestRunTests_StopsWhenTheContextEnds(t *testing.T) {
	t.Parallel()
	set := manyTests(t, allowRefunds, "{tool: refund, args: {amount: 1, currency: EUR}}", 1, "allow")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := set.RunTests(ctx, time.Minute, testCap, testTimes); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// The tests in two documents together take longer than the time limit. RunTests returns a single problem, which says
// how many tests were run.
func TestRunTests_LimitsTheTime(t *testing.T) {
	t.Parallel()
	file := func(name string, tests int) document.File {
		text := "version: 1\nname: " + name + "\nserver: " + name + "\ndefault: deny\ntools: {a: {action: deny, when: 'args.l.exists(x, args.l.exists(y, x > y && y > 1000))'}}\ntests:\n"
		return document.File{Path: name + ".yaml", Text: []byte(text + strings.Repeat("  - {call: {tool: a, args: {l: [1, 2, 3, 4, 5, 6, 7, 8]}}, want: {action: deny}}\n", tests))}
	}
	set, err := document.ParseSet([]document.File{file("few", 2), file("many", 500)}, nil, testNow)
	if err != nil {
		t.Fatal(err)
	}
	failed, err := set.RunTests(t.Context(), 10*time.Microsecond, testCap, testTimes)
	if err != nil || len(failed) != 1 {
		t.Fatalf("failed: %v, %v", failed, err)
	}
	for _, want := range []string{".yaml:6:", "the tests of all documents take longer than 10µs: ", " of 502 ran", "remove tests"} {
		if !strings.Contains(failed[0].Error(), want) {
			t.Errorf("%q is missing in %s", want, failed[0].Error())
		}
	}
	if failed, err := set.RunTests(t.Context(), time.Hour, testCap, testTimes); err != nil || len(failed) != 0 {
		t.Errorf("with enough time: %v, %v", failed, err)
	}
}

// FuzzTests checks that the tests in every document that loads can be run, and that the JSON Schema accepts the
// document.
func FuzzTests(f *testing.F) {
	files, _ := filepath.Glob("testdata/tests/*.txtar") // the pattern is a constant
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range archive.Files {
			f.Add(part.Data)
		}
	}
	for _, m := range messages(f) {
		f.Add(m.text)
	}
	schema := resolveSchema(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		set, err := document.ParseSet([]document.File{{Path: "p.yaml", Text: text}}, nil, testNow)
		if err != nil {
			return
		}
		for _, p := range runTests(t, set) {
			if p.Line == 0 || p.Message == "" {
				t.Errorf("%v has no place or no message", p)
			}
		}
		value, ok := jsonValue(t, text)
		if !ok {
			t.Fatal("the document loads, and is not YAML")
		}
		if err := schema.Validate(value); err != nil {
			t.Errorf("the document loads, and the schema refuses it: %v", err)
		}
	})
}

// BenchmarkLoad_Tests loads a document with the maximum number of tests, and runs the tests.
func BenchmarkLoad_Tests(b *testing.B) {
	list := strings.TrimSuffix(strings.Repeat("a, ", 30), ", ")
	for name, c := range map[string][2]string{
		"refunds": {allowRefunds, "{tool: refund, args: {amount: 1, currency: EUR}}"},
		"loops": {
			`{name: r, match: {tool: t}, action: allow, when: 'args.a.all(x, args.a.all(y, x == y))'}`,
			"{tool: t, args: {a: [" + list + "]}}",
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				set := manyTests(b, c[0], c[1], document.MaxTests, "allow")
				failed, err := set.RunTests(b.Context(), time.Minute, testCap, testTimes)
				if err != nil {
					b.Fatal(err)
				}
				if len(failed) > 0 {
					b.Fatal(failed[0])
				}
			}
		})
	}
}
