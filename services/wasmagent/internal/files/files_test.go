package files_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/files"
)

var now = time.Unix(1_700_000_000, 0)

// Each file has only one canonical path. Absolute paths, and paths that contain "..", are refused.
func TestPath_IsCanonicalAndRelative(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a": "a", "./a": "a", "a/./b": "a/b", "a//b": "a/b", "ä b": "ä b", "...": "...", "a..b": "a..b", strings.Repeat("x", 1024): strings.Repeat("x", 1024),
	} {
		if got, err := files.Path(text); got != want || err != nil {
			t.Errorf("%q is %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", ".", "./", "/", "/a", "..", "../a", "a/..", "a/../b", "a/", "a\\b", "a\x00", "a\nb", "a\u0085b", "\xff", strings.Repeat("x", 1025)} {
		if got, err := files.Path(text); !errors.Is(err, files.ErrPath) {
			t.Errorf("%q is %q, %v; want it refused", text, got, err)
		}
	}
}

func TestFiles_ReadEditList(t *testing.T) {
	t.Parallel()
	f := files.New(files.Bounds{Bytes: 100, Count: 3})
	wrote := func(name, content string) error {
		_, err := f.Write(name, content, now)
		return err
	}
	if err := errors.Join(wrote("./b", "one\ntwo\ntwo\n"), wrote("a/c", "x")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		offset, limit int
		want          string
	}{{0, 0, "one\ntwo\ntwo\n"}, {1, 1, "two\n"}, {1, 0, "two\ntwo\n"}, {0, 2, "one\ntwo\n"}, {9, 0, ""}} {
		if got, err := f.Read("b", c.offset, c.limit); got != c.want || err != nil {
			t.Errorf("lines with offset %d and limit %d: %q, %v; want %q", c.offset, c.limit, got, err, c.want)
		}
	}
	_, _, twice := f.Edit("b", "two", "2", false, now)
	_, _, none := f.Edit("b", "three", "3", false, now)
	_, _, empty := f.Edit("b", "", "3", true, now)
	_, missing := f.Read("d", 0, 0)
	if !errors.Is(twice, files.ErrAmbiguous) || !errors.Is(none, files.ErrTextNotFound) || !errors.Is(empty, files.ErrTextNotFound) || !errors.Is(missing, files.ErrNotFound) {
		t.Errorf("the edits return %v, %v and %v, and the read of a missing file %v", twice, none, empty, missing)
	}
	if name, n, err := f.Edit("./b", "two", "2", true, now); name != "b" || n != 2 || err != nil {
		t.Errorf("the edit makes %d replacements in %s, %v", n, name, err)
	}
	list, err := f.List("")
	if err != nil || len(list) != 2 || list[0].Path != "a/c" || list[1].Path != "b" || list[1].Size != len("one\n2\n2\n") || !list[1].Modified.Equal(now) {
		t.Errorf("lists %+v, %v", list, err)
	}
	if list, err = f.List("a/"); err != nil || len(list) != 1 {
		t.Errorf("below a it lists %+v, %v", list, err)
	}
	if _, err = f.List("../x"); !errors.Is(err, files.ErrPath) {
		t.Errorf("below ../x it lists %v", err)
	}
}

func TestFiles_StayWithinBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		bounds := files.Bounds{Bytes: 200, Count: 4}
		f := files.New(bounds)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			name := rapid.SampledFrom([]string{"a", "./a", "b", "c/d", "e", "f", "g"}).Draw(t, "name")
			text := rapid.StringMatching(`[xy]{0,60}`).Draw(t, "text")
			var err error
			if rapid.Bool().Draw(t, "edit") {
				_, _, err = f.Edit(name, "x", text, true, now)
			} else {
				_, err = f.Write(name, text, now)
			}
			list, _ := f.List("")
			all := 0
			for _, file := range list {
				all += len(file.Path) + file.Size
			}
			if all != f.Bytes() || all > bounds.Bytes || len(list) > bounds.Count || len(list) != f.Count() {
				t.Fatalf("%d files of %d bytes, counted as %d of %d (%v)", len(list), all, f.Count(), f.Bytes(), err)
			}
		}
	})
}

func TestEdit_RefusesLargeResult(t *testing.T) {
	t.Parallel()
	f := files.New(files.Bounds{Bytes: 1 << 20, Count: 1})
	if _, err := f.Write("a", strings.Repeat("x", 1<<19), now); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Edit("a", "x", strings.Repeat("y", 1<<19), true, now); !errors.Is(err, files.ErrFull) {
		t.Error(fmt.Errorf("the edit returns %w", err))
	}
}

func TestClone_IsIndependent(t *testing.T) {
	t.Parallel()
	f := files.New(files.Bounds{Bytes: 100, Count: 3})
	if _, err := f.Write("a", "old", now); err != nil {
		t.Fatal(err)
	}
	before := f.Clone()
	if _, err := f.Write("a", "newer", now); err != nil {
		t.Fatal(err)
	}
	if got, _ := before.Read("a", 0, 0); got != "old" || before.Bytes() != 4 {
		t.Errorf("the clone has %q, %d bytes", got, before.Bytes())
	}
}
