package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

func TestNamedByFile_SameFilesHaveSameNamesInEveryFolder(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ paths, want string }{
		{"/srv/policies/a.yaml policies/b.yaml", "a.yaml b.yaml"},
		{"one/a.yaml two/a.yaml", "one/a.yaml two/a.yaml"},
	} {
		var documents []*policyv1.Document
		for path := range strings.FieldsSeq(tt.paths) {
			documents = append(documents, &policyv1.Document{Path: path, Text: "text of " + path})
		}
		var got []string
		for i, d := range namedByFile(documents) {
			got = append(got, d.GetPath())
			if d.GetText() != documents[i].GetText() {
				t.Errorf("the text of %s is %q", d.GetPath(), d.GetText())
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v", tt.paths, got)
		}
	}
}

func TestCheckExpected_NamesTheActiveRevision(t *testing.T) {
	t.Parallel()
	active := &policyv1.Revision{DocumentsId: strings.Repeat("ab", 32), Id: strings.Repeat("cd", 32), Author: "ana", Comment: "because"}
	for _, expect := range []string{"abababab", "ABABABAB", "cdcdcdcdcd", active.GetDocumentsId()} {
		if err := checkExpected(active, expect); err != nil {
			t.Errorf("%s: %v", expect, err)
		}
	}
	if err := checkExpected(&policyv1.Revision{Id: strings.Repeat("cd", 32), Stored: true}, "00000000"); err != nil {
		t.Errorf("no documents are expected, and none have been applied: %v", err)
	}
	err := checkExpected(active, "abababac")
	if err == nil || !strings.Contains(err.Error(), "revision abababababab, applied by ana at ") || !strings.Contains(err.Error(), "because") {
		t.Errorf("%v", err)
	}
	for _, expect := range []string{"ababab", "ghghghgh", ""} {
		if err := checkExpected(active, expect); err == nil {
			t.Errorf("%q is accepted", expect)
		}
	}
}

// The paths of stored documents name files outside of the folder. No file is written outside of the folder, and no
// existing file is replaced.
func TestExportDocuments_WritesOnlyNewFilesInTheFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	if err := exportDocuments(out, []documentRecord{{"../up.yaml", "1"}, {"/etc/root.yaml", "2"}, {`..\windows.yaml`, "3"}}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"up.yaml": "1", "root.yaml": "2", "windows.yaml": "3"} {
		if text, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("%v: %v", all, err)
	}
	if err := exportDocuments(out, []documentRecord{{"up.yaml", "4"}}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("an existing file: %v", err)
	}
	for _, path := range []string{"..", "/", ".hidden.yaml", "a/.."} {
		if err := exportDocuments(out, []documentRecord{{path, "5"}}); err == nil {
			t.Errorf("%s is written", path)
		}
	}
}
