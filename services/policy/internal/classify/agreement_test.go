package classify_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/policy/internal/classify"
)

// label contains the category that the classifier's result for a tool is compared with, and the categories that each of
// two readers wrote. The first of these is the reader's category. The rest are categories that the tool could also
// have. If only one reader labelled the tool, Other is empty.
type label struct {
	Server   string   `json:"server"`
	Name     string   `json:"name"`
	Category string   `json:"category"`
	One      []string `json:"one"`
	Other    []string `json:"other"`
	Why      string   `json:"why"`
}

// allows reports whether a category is the one in the label, or one that a reader wrote.
func (l label) allows(category string) bool {
	return category == l.Category || slices.Contains(l.One, category) || slices.Contains(l.Other, category)
}

var categories = []string{"Read", "Write", "Execute", "Destructive", "Financial"}

func labels(t *testing.T, file string) (out []label) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "labels", file))
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		var l label
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		out = append(out, l)
	}
	return out
}

// tools returns the real tools in the lists in a folder, by server and name.
func tools(t testing.TB, folder string) map[[2]string]classify.Tool {
	t.Helper()
	out := make(map[[2]string]classify.Tool)
	files, err := filepath.Glob(filepath.Join("testdata", folder, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Tools []jsontext.Value `json:"tools"`
		}
		if err := json.Unmarshal(raw, &list); err != nil {
			t.Fatal(err)
		}
		for _, one := range list.Tools {
			tool, err := classify.Read(one)
			if err != nil {
				t.Fatal(err)
			}
			out[[2]string{strings.TrimSuffix(filepath.Base(file), ".json"), tool.Name}] = tool
		}
	}
	return out
}

// TestClassify_AgreesWithLabels compares the classifier with the labels of real tools. It checks how many results are
// equal to the label or one of its alternatives. It also checks that a tool whose label is Destructive or Financial is
// never classified as Read. In some of the sets, a tool whose label is Execute must not be classified as Read either.
func TestClassify_AgreesWithLabels(t *testing.T) {
	t.Parallel()
	for _, set := range []struct {
		lists, labels string
		want          agreement
	}{
		{"lists", "labels.jsonl", agreement{0.91, 0.97, 0.99, true}},
		{"heldout", "heldout.jsonl", agreement{0.91, 0.96, 0.98, false}},
		{"third", "third.jsonl", agreement{0.92, 0.97, 0.99, true}},
		{"fourth", "fourth.jsonl", agreement{0.91, 0.92, 0.98, true}},
		{"fifth", "fifth.jsonl", agreement{0.92, 0.97, 0.985, false}},
		{"sixth", "sixth.jsonl", agreement{0.95, 0.98, 0.985, false}},
		{"seventh", "seventh.jsonl", agreement{0.94, 0.985, 0.985, false}},
		{"eighth", "eighth.jsonl", agreement{0.91, 0.97, 0.985, false}},
	} {
		t.Run(set.lists, func(t *testing.T) {
			t.Parallel()
			agrees(t, tools(t, set.lists), labels(t, set.labels), set.want)
		})
	}
}

// agreement contains the minimum shares of the results for a set of tools. The field strict is the share that must be
// equal to the label. The field within is the share that must be equal to the label or one of its alternatives. The
// field safe is the share that must be equal to one of these, or be a stricter category.
type agreement struct {
	strict, within, safe float64
	// executeAsRead allows the classifier to classify tools as Read even if their label is Execute.
	executeAsRead bool
}

func agrees(t *testing.T, all map[[2]string]classify.Tool, set []label, want agreement) {
	t.Helper()
	var strict, within, safe int
	found := make(map[[2]string]int)
	var wrong strings.Builder
	for _, l := range set {
		tool, ok := all[[2]string{l.Server, l.Name}]
		if !ok {
			t.Fatalf("no list has %s of %s", l.Name, l.Server)
		}
		got := classify.Classify(tool, false)
		category := titled(enum.Name(got.GetCategory()))
		found[[2]string{l.Category, category}]++
		if l.allows(category) || slices.Index(categories, category) > slices.Index(categories, l.Category) {
			safe++
		} else {
			t.Logf("%s of %s is %s, and is called %s, which is milder", l.Name, l.Server, l.Category, category)
		}
		switch {
		case category == l.Category:
			strict++
			within++
		case l.allows(category):
			within++
			fmt.Fprintf(&wrong, "%s %s: %s, also %s (%.2f)\n", l.Server, l.Name, l.Category, category, got.GetConfidence())
		default:
			fmt.Fprintf(&wrong, "%s %s: %s, not %s (%.2f)\n", l.Server, l.Name, l.Category, category, got.GetConfidence())
		}
		if category == "Read" && (l.Category == "Destructive" || l.Category == "Financial" || l.Category == "Execute" && !want.executeAsRead) {
			t.Errorf("%s of %s is %s, and is called Read", l.Name, l.Server, l.Category)
		}
	}
	n := float64(len(set))
	floor := 0
	for _, l := range set {
		if verbFirst(l.Name) == l.Category {
			floor++
		}
	}
	t.Logf("by the first known verb of the name alone: %.1f %%", 100*float64(floor)/n)
	t.Logf("%d tools: %.1f %% strict, %.1f %% within what both labels allow", len(set), 100*float64(strict)/n, 100*float64(within)/n)
	t.Logf("%.1f %% are within what the labels allow, or stricter", 100*float64(safe)/n)
	if float64(safe) < want.safe*n {
		t.Errorf("%d of %d are called milder than any reader could hold them to be, want %v safe", len(set)-safe, len(set), want.safe)
	}
	for _, of := range categories {
		var labelled, called int
		for _, other := range categories {
			labelled += found[[2]string{of, other}]
			called += found[[2]string{other, of}]
		}
		right := float64(found[[2]string{of, of}])
		t.Logf("%-11s precision %5.1f %% of %d, recall %5.1f %% of %d", of, 100*right/float64(max(called, 1)), called, 100*right/float64(max(labelled, 1)), labelled)
	}
	t.Logf("what it gets wrong:\n%s", &wrong)
	if float64(strict) < want.strict*n || float64(within) < want.within*n {
		t.Errorf("%d of %d are right and %d within, want %v and %v", strict, len(set), within, want.strict, want.within)
	}
}

// titled returns a category's name in the form that labels use.
func titled(name string) string { return strings.ToUpper(name[:1]) + name[1:] }

// verbFirst returns the category of the first known verb in a name. The classifier is compared with this simple method.
func verbFirst(name string) string {
	for _, w := range strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return r < 'a' || r > 'z' }) {
		switch w {
		case "get", "list", "read", "search", "find", "fetch", "query", "show", "check", "describe", "status", "view", "count":
			return "Read"
		case "create", "add", "update", "set", "write", "edit", "send", "save", "store", "move", "upload", "post", "put", "patch":
			return "Write"
		case "run", "execute", "exec", "start", "deploy", "click", "evaluate", "trigger", "spawn", "navigate":
			return "Execute"
		case "delete", "remove", "drop", "clear", "reset", "terminate", "destroy", "purge":
			return "Destructive"
		case "pay", "charge", "refund", "transfer", "buy":
			return "Financial"
		}
	}
	return "Read"
}
