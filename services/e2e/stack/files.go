package stack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// ReadFile returns the content of a file.
func ReadFile(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// WriteFile writes a file that only its owner may read.
func WriteFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// ReplaceInFile replaces a string in a file. The test fails if the file does not contain the string.
func ReplaceInFile(t *testing.T, file, old, with string) {
	t.Helper()
	text := ReadFile(t, file)
	if !strings.Contains(text, old) {
		t.Fatalf("%q is not in %s", old, file)
	}
	WriteFile(t, file, strings.ReplaceAll(text, old, with))
}

// WriteFolder creates a temporary directory for the test and writes files to it. files contains their contents, by
// name. WriteFolder returns the directory's path.
func WriteFolder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		WriteFile(t, filepath.Join(dir, name), text)
	}
	return dir
}
