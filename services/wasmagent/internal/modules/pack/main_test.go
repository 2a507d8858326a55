package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

func TestPack_ReplacesModulesByOneArchive(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	want := map[string]string{"a.wasm": "first module", "b.wasm": "second module"}
	for name, text := range want {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := pack(directory); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(directory, "*.wasm")); err != nil || len(left) > 0 {
		t.Errorf("the directory still contains %v, %v", left, err)
	}
	file, err := os.Open(filepath.Join(directory, "guests.tar.zst"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unpacked, err := zstd.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer unpacked.Close()
	got := make(map[string]string)
	for archive := tar.NewReader(unpacked); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		got[header.Name] = string(text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the archive (-want +got):\n%s", diff)
	}
}

func TestPack_FailsWithoutModules(t *testing.T) {
	t.Parallel()
	if err := pack(t.TempDir()); err == nil {
		t.Error("a directory without modules was packed")
	}
}
