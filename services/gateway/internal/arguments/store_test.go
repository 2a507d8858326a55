package arguments_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/arguments"
)

func config(dir string) arguments.Config {
	return arguments.Config{
		Dir: filepath.Join(dir, "arguments"), Keys: filepath.Join(dir, "keys"), Bytes: 1 << 20, Share: 1, Age: 24 * time.Hour, Log: slog.New(slog.DiscardHandler),
	}
}

func open(t *testing.T, cfg arguments.Config) *arguments.Store {
	t.Helper()
	s, err := arguments.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func put(t *testing.T, s *arguments.Store, id, who, text string) arguments.Copy {
	t.Helper()
	c, err := s.Put(id, who, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func wantCopy(t *testing.T, s *arguments.Store, id string, c arguments.Copy, want string) {
	t.Helper()
	if got, err := s.Get(id, c); err != nil || string(got) != want {
		t.Errorf("%s: %q, %v; want %q", id, got, err, want)
	}
}

// files returns the names and the contents of all files in the directories of a store.
func files(t *testing.T, cfg arguments.Config) map[string][]byte {
	t.Helper()
	out := make(map[string][]byte)
	for _, dir := range []string{cfg.Dir, cfg.Keys} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if out[entry.Name()], err = os.ReadFile(filepath.Join(dir, entry.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	return out
}

func TestGet_ReturnsTheCopyAlsoAfterARestart(t *testing.T) {
	t.Parallel()
	cfg := config(t.TempDir())
	s := open(t, cfg)
	texts := map[string]string{"a": `{"path":"/srv/x"}`, "b": "", "c": strings.Repeat("東京", 10_000)}
	copies := make(map[string]arguments.Copy)
	for id, text := range texts {
		copies[id] = put(t, s, id, "ana", text)
		wantCopy(t, s, id, copies[id], text)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, cfg)
	for id, text := range texts {
		wantCopy(t, again, id, copies[id], text)
	}
	put(t, again, "d", "ana", "new")
	for name, raw := range files(t, cfg) {
		for _, text := range texts {
			if len(text) > 0 && bytes.Contains(raw, []byte(text[:12])) {
				t.Errorf("%s contains arguments that are not encrypted", name)
			}
		}
	}
}

// The copy of one call can't be read as the copy of another call, and damage is detected.
func TestGet_ReturnsNoOtherCopy(t *testing.T) {
	t.Parallel()
	cfg := config(t.TempDir())
	s := open(t, cfg)
	a, b := put(t, s, "a", "ana", "arguments of a"), put(t, s, "b", "ana", "arguments of b")
	for name, c := range map[string]arguments.Copy{
		"the place of another": {Digest: a.Digest, Place: b.Place}, "another digest": {Digest: b.Digest, Place: a.Place}, "no place": {Digest: a.Digest},
		"the end of the segment": {Digest: a.Digest, Place: strings.TrimSuffix(a.Place, ":0") + ":100000"}, "below 0": {Digest: a.Digest, Place: strings.TrimSuffix(a.Place, ":0") + ":-1"},
		"inside of a copy": {Digest: a.Digest, Place: strings.TrimSuffix(a.Place, ":0") + ":5"},
	} {
		if got, err := s.Get("a", c); !errors.Is(err, arguments.ErrDamaged) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if got, err := s.Get("b", a); !errors.Is(err, arguments.ErrDamaged) {
		t.Errorf("the copy of another call: %q, %v", got, err)
	}
	for name, place := range map[string]string{"another segment": "20200101T000000.000000000-0102030405060708:0", "a path": "../keys/x:0"} {
		if got, err := s.Get("a", arguments.Copy{Digest: a.Digest, Place: place}); !errors.Is(err, arguments.ErrRemoved) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestGet_FindsDamage(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(segment, key string) error{
		"a changed byte":    func(segment, _ string) error { return flip(segment) },
		"a truncated file":  func(segment, _ string) error { return os.Truncate(segment, 20) },
		"another key":       func(_, key string) error { return flip(key) },
		"a short key":       func(_, key string) error { return os.Truncate(key, 3) },
		"the key is absent": func(_, key string) error { return os.Remove(key) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t.TempDir())
			s := open(t, cfg)
			c := put(t, s, "a", "ana", "arguments of a")
			segment, _, _ := strings.Cut(c.Place, ":")
			if err := damage(filepath.Join(cfg.Dir, segment+".args"), filepath.Join(cfg.Keys, segment+".key")); err != nil {
				t.Fatal(err)
			}
			if got, err := s.Get("a", c); !errors.Is(err, arguments.ErrDamaged) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

func flip(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	raw[len(raw)-1] ^= 1
	return os.WriteFile(path, raw, 0o600)
}

// When a copy has reached the maximum age, the copy and its key are removed, even if no call is made.
func TestStore_RemovesCopiesAtTheMaximumAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(t.TempDir())
		s := open(t, cfg)
		first := put(t, s, "a", "ana", "first")
		time.Sleep(23 * time.Hour)
		second := put(t, s, "b", "ana", "second")
		wantCopy(t, s, "a", first, "first")
		time.Sleep(time.Hour)
		synctest.Wait()
		if left := files(t, cfg); len(left) != 2 {
			t.Errorf("%d files are left, want a segment and its key", len(left))
		}
		if _, err := s.Get("a", first); !errors.Is(err, arguments.ErrRemoved) {
			t.Errorf("the first copy: %v", err)
		}
		wantCopy(t, s, "b", second, "second")
		time.Sleep(23 * time.Hour)
		synctest.Wait()
		if left := files(t, cfg); len(left) != 0 {
			t.Errorf("%d files are left", len(left))
		}
		put(t, s, "c", "ana", "third")
	})
}

// Copies that expire while no store is open are removed when a store is opened. Keys without a segment are removed too.
func TestOpen_RemovesExpiredCopiesAndUnusedKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(t.TempDir())
		s := open(t, cfg)
		put(t, s, "a", "ana", "first")
		if err := errors.Join(s.Close(), os.WriteFile(filepath.Join(cfg.Keys, "20260101T000000.000000000-0102030405060708.key"), make([]byte, 32), 0o600)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(25 * time.Hour)
		open(t, cfg)
		if left := files(t, cfg); len(left) != 0 {
			t.Errorf("%d files are left", len(left))
		}
	})
}

// A process is killed while it writes a copy, and the copy is incomplete. All other copies can be read, and new copies
// can be stored.
func TestOpen_IncompleteCopyAtTheEnd(t *testing.T) {
	t.Parallel()
	for cut := int64(1); cut < 60; cut += 7 {
		cfg := config(t.TempDir())
		s := open(t, cfg)
		first, second := put(t, s, "a", "ana", "first"), put(t, s, "b", "ana", "a longer second text, which is cut")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		segment, _, _ := strings.Cut(first.Place, ":")
		path := filepath.Join(cfg.Dir, segment+".args")
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, info.Size()-cut); err != nil {
			t.Fatal(err)
		}
		again := open(t, cfg)
		wantCopy(t, again, "a", first, "first")
		if _, err := again.Get("b", second); !errors.Is(err, arguments.ErrDamaged) {
			t.Errorf("the incomplete copy: %v", err)
		}
		wantCopy(t, again, "c", put(t, again, "c", "ana", "third"), "third")
	}
}

// The oldest copies are removed when the maximum size is exceeded. Copies from before a restart count toward that size,
// too.
func TestPut_RemovesTheOldestCopiesIfThereIsNoSpace(t *testing.T) {
	t.Parallel()
	cfg := config(t.TempDir())
	s := open(t, cfg)
	text := strings.Repeat("x", 10<<10)
	var copies []arguments.Copy
	for i := range 150 {
		copies = append(copies, put(t, s, fmt.Sprint(i), fmt.Sprint("person ", i), text))
		if i == 75 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, cfg)
		}
		var size int
		for _, raw := range files(t, cfg) {
			size += len(raw)
		}
		if size > 1<<20+100<<10 {
			t.Fatalf("after %d copies the files have %d bytes", i, size)
		}
	}
	if _, err := s.Get("0", copies[0]); !errors.Is(err, arguments.ErrRemoved) {
		t.Errorf("the oldest copy: %v", err)
	}
	for i := 80; i < 150; i++ {
		wantCopy(t, s, fmt.Sprint(i), copies[i], text)
	}
}

// A person whose copies exceed the person's share loses the oldest of them, even after a restart. The copies of other
// persons are kept.
func TestPut_RemovesThePersonsOwnCopiesIfTheShareIsExceeded(t *testing.T) {
	t.Parallel()
	cfg := config(t.TempDir())
	cfg.Share = 0.5
	s := open(t, cfg)
	text := strings.Repeat("x", 20<<10)
	other := put(t, s, "other", "ben", text)
	var own []arguments.Copy
	for i := range 60 {
		own = append(own, put(t, s, fmt.Sprint(i), "ana", text))
		if i == 40 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, cfg)
		}
		if usage := s.Usage(); usage.Bytes > 1<<19+21<<10+100 || usage.RemovedEarly.IsZero() != (i < 25) && i != 40 {
			t.Fatalf("after %d copies: %+v", i+1, usage)
		}
	}
	if _, err := s.Get("0", own[0]); !errors.Is(err, arguments.ErrRemoved) {
		t.Errorf("the person's oldest copy: %v", err)
	}
	wantCopy(t, s, "59", own[59], text)
	wantCopy(t, s, "other", other, text)
}

// The copies of two persons together use all of the space. These two persons lose their oldest copies, but a person who
// uses little space loses none.
func TestPut_RemovesTheCopiesOfWhoUsesTheMostSpace(t *testing.T) {
	t.Parallel()
	cfg := config(t.TempDir())
	cfg.Share = 0.6
	s := open(t, cfg)
	small, text := put(t, s, "small", "cleo", "the oldest copy"), strings.Repeat("x", 20<<10)
	for i := range 60 {
		put(t, s, fmt.Sprint("a", i), "ana", text)
		put(t, s, fmt.Sprint("b", i), "ben", text)
	}
	wantCopy(t, s, "small", small, "the oldest copy")
	if usage := s.Usage(); usage.Bytes > 1<<20 || usage.RemovedEarly.IsZero() {
		t.Errorf("%+v", usage)
	}
}

// A copy that is larger than the person's share replaces all other copies of that person.
func TestPut_StoresACopyThatIsLargerThanTheShare(t *testing.T) {
	t.Parallel()
	cfg := config(t.TempDir())
	cfg.Share = 0.1
	s := open(t, cfg)
	first, text := put(t, s, "a", "ana", "first"), strings.Repeat("x", 300<<10)
	wantCopy(t, s, "b", put(t, s, "b", "ana", text), text)
	put(t, s, "c", "ana", "third")
	if _, err := s.Get("a", first); !errors.Is(err, arguments.ErrRemoved) {
		t.Errorf("the older copy: %v", err)
	}
}

func TestStore_ClosedStoreStoresNothing(t *testing.T) {
	t.Parallel()
	s := open(t, config(t.TempDir()))
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put("a", "ana", nil); err == nil {
		t.Error("a closed store stores a copy")
	}
}

// If a segment can't be created, nothing is stored. The next copy is stored in a new segment.
func TestPut_ReturnsAnErrorIfTheSegmentCannotBeCreated(t *testing.T) {
	t.Parallel()
	cfg := config(t.TempDir())
	s := open(t, cfg)
	for _, dir := range []string{cfg.Dir, cfg.Keys} {
		if err := os.Rename(dir, dir+".away"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Put("a", "ana", []byte("x")); !errors.Is(err, arguments.ErrNotStored) || s.Fault() == nil {
			t.Errorf("a copy is stored without %s: %v", dir, err)
		}
		if err := os.Rename(dir+".away", dir); err != nil {
			t.Fatal(err)
		}
	}
	wantCopy(t, s, "b", put(t, s, "b", "ana", "x"), "x")
	if err := s.Fault(); err != nil {
		t.Errorf("after a copy was stored: %v", err)
	}
}

func TestPut_ConcurrentCopiesAreAllStored(t *testing.T) {
	t.Parallel()
	s := open(t, config(t.TempDir()))
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 50 {
				id := fmt.Sprintf("%d-%d", i, j)
				c, err := s.Put(id, "ana", []byte(id))
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := s.Get(id, c); err != nil || string(got) != id {
					t.Errorf("%s: %q, %v", id, got, err)
				}
			}
		})
	}
	group.Wait()
}

func TestOpen_RefusesInvalidConfigurations(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*arguments.Config){
		"no folder": func(c *arguments.Config) { c.Dir = "" }, "no folder of keys": func(c *arguments.Config) { c.Keys = "" },
		"no space": func(c *arguments.Config) { c.Bytes = 0 }, "no share": func(c *arguments.Config) { c.Share = 0 },
		"too large a share": func(c *arguments.Config) { c.Share = 1.5 }, "no age": func(c *arguments.Config) { c.Age = 0 }, "no log": func(c *arguments.Config) { c.Log = nil },
	} {
		cfg := config(t.TempDir())
		change(&cfg)
		if _, err := arguments.Open(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A segment with arbitrary content can be opened and read without a panic.
func FuzzOpen(f *testing.F) {
	f.Add([]byte{0, 0, 0, 28, 1, 2, 3, 4, 5, 6, 7, 8}, int64(0))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, int64(3))
	f.Fuzz(func(t *testing.T, raw []byte, offset int64) {
		cfg := config(t.TempDir())
		if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		name := time.Now().UTC().Format("20060102T150405.000000000") + "-0102030405060708"
		if err := os.WriteFile(filepath.Join(cfg.Dir, name+".args"), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, cfg)
		sum := sha256.Sum256(raw)
		if got, err := s.Get("a", arguments.Copy{Digest: hex.EncodeToString(sum[:]), Place: fmt.Sprintf("%s:%d", name, offset)}); err == nil {
			t.Errorf("there is a copy without a key: %q", got)
		}
	})
}

func BenchmarkPut(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			cfg := config(b.TempDir())
			cfg.Bytes = 1 << 30
			s, err := arguments.Open(cfg)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			text := bytes.Repeat([]byte("x"), size)
			b.SetBytes(int64(size))
			for i := 0; b.Loop(); i++ {
				if _, err := s.Put("0195d3a4-7c1e-7d3a-9b1f-2f1f6d2f7c11", fmt.Sprint(i%100), text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
