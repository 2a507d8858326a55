// Package arch_test checks the import rules and other conventions of the project. It parses the source files instead of
// running `go list`, because the go command would cache a pass and miss an import that is added later.
package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/sluice-mesh/sluice/services/"

// root is the directory of the services module.
const root = "../.."

// testFolders lists the directories that test the mesh from outside. Tests of every service may use the helpers in e2e.
var testFolders = map[string]bool{"e2e": true, "bench": true}

// testsOfTwo maps tests that run two services in one bubble of testing/synctest to the service that they import.
var testsOfTwo = map[string]string{"gateway/internal/accesstoken/rotation_test.go": "identity"}

func TestImports_ServicesDoNotImportEachOther(t *testing.T) {
	t.Parallel()
	eachImport(t, func(file, imp string) {
		target, ours := strings.CutPrefix(imp, module)
		from, to := firstElement(file), firstElement(target)
		switch {
		case !ours, to == from, to == "internal", from == "sluice":
		case testFolders[from] && to == "sluice", to == "e2e" && isTest(file), testsOfTwo[file] == target:
		default:
			t.Errorf("%s must not import %s: services talk through gen/", file, imp)
		}
	})
}

func TestImports_OnlyTheGatewayFramesMCP(t *testing.T) {
	t.Parallel()
	isMetadata := func(imp string) bool {
		return strings.HasSuffix(imp, "/go-sdk/auth") || strings.HasSuffix(imp, "/go-sdk/oauthex")
	}
	eachImport(t, func(file, imp string) {
		if firstElement(file) == "identity" && isMetadata(imp) { // the metadata of OAuth, which frame no MCP
			return
		}
		if strings.HasPrefix(imp, "github.com/modelcontextprotocol/go-sdk") && firstElement(file) != "sluice" && !isTest(file) && !testFolders[firstElement(file)] {
			t.Errorf("%s must not import %s: the SDK is for clients, the demo server and tests", file, imp)
		}
	})
}

func TestImports_OnlyWasmagentRunsGuests(t *testing.T) {
	t.Parallel()
	eachImport(t, func(file, imp string) {
		if strings.HasPrefix(imp, "github.com/tetratelabs/wazero") && firstElement(file) != "wasmagent" {
			t.Errorf("%s must not import %s", file, imp)
		}
	})
}

func TestImports_DecisionCodeDoesNotUseEncodingJSON(t *testing.T) {
	t.Parallel()
	eachImport(t, func(file, imp string) {
		switch firstElement(file) {
		case "gateway", "identity", "policy", "ratelimit", "approval":
			if imp == "encoding/json" && !isTest(file) {
				t.Errorf("%s must not import %s: it folds case and merges duplicates", file, imp)
			}
		}
	})
}

// decisionPackages lists the packages that evaluate policies and rate limits. The results of the functions in these
// packages must depend only on the functions' arguments.
var decisionPackages = []string{"policy/internal/engine/", "ratelimit/internal/window/"}

func TestImports_DecisionPackagesDoNoIO(t *testing.T) {
	t.Parallel()
	eachImport(t, func(file, imp string) {
		for _, core := range decisionPackages {
			if !strings.HasPrefix(file, core) || isTest(file) {
				continue
			}
			switch {
			case imp == "context", imp == "os", imp == "net", strings.HasPrefix(imp, "net/"),
				strings.HasPrefix(imp, "google.golang.org/"), strings.HasPrefix(imp, "go.opentelemetry.io/"):
				t.Errorf("%s must not import %s: a package that decides does no I/O", file, imp)
			}
		}
	})
}

func TestImports_InternalPackagesKnowNoService(t *testing.T) {
	t.Parallel()
	eachImport(t, func(file, imp string) {
		target, ours := strings.CutPrefix(imp, module)
		if firstElement(file) != "internal" || !ours {
			return
		}
		if to := firstElement(target); to != "internal" && (to != "e2e" || !isTest(file)) {
			t.Errorf("%s must not import %s: packages below internal know no service", file, imp)
		}
	})
}

// eachImport calls f for every import of every Go file. file is the path of the file relative to the module.
func eachImport(t *testing.T, f func(file, imp string)) {
	t.Helper()
	eachFile(t, parser.ImportsOnly, func(file string, parsed *ast.File) {
		for _, spec := range parsed.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			f(file, imp)
		}
	})
}

// eachFile calls f for every Go file. file is the path of the file relative to the module.
func eachFile(t *testing.T, mode parser.Mode, f func(file string, parsed *ast.File)) {
	t.Helper()
	seen := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, mode)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f(filepath.ToSlash(rel), parsed)
		seen++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 100 {
		t.Fatalf("only %d files were read: the test reads the wrong folder", seen)
	}
}

func firstElement(path string) string {
	name, _, _ := strings.Cut(path, "/")
	return name
}

func isTest(file string) bool { return strings.HasSuffix(file, "_test.go") }
