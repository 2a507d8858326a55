package stdio

import (
	"os"
	"path/filepath"
	"testing"
)

// homeFixture has a private directory, and a HOME with .kube/config and .config/gh/hosts.yml.
type homeFixture struct{ dir, home string }

func newHomeFixture(t *testing.T) homeFixture {
	t.Helper()
	root := t.TempDir()
	h := homeFixture{filepath.Join(root, "own"), filepath.Join(root, "home")}
	for _, path := range []string{filepath.Join(h.home, ".kube"), filepath.Join(h.home, ".config", "gh"), h.dir} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func (h homeFixture) link(t *testing.T, entries ...string) {
	t.Helper()
	if err := linkHome(h.dir, h.home, entries); err != nil {
		t.Fatal(err)
	}
}

// target returns the target of a link in the private directory. It returns "" if the entry is not a link.
func (h homeFixture) target(name string) string {
	target, _ := os.Readlink(filepath.Join(h.dir, name))
	return target
}

func TestLinkHome_LinksTheEntriesThatExist(t *testing.T) {
	t.Parallel()
	h := newHomeFixture(t)
	for range 2 {
		h.link(t, ".kube", ".config/gh", ".none")
		if got := []string{h.target(".kube"), h.target(".config/gh"), h.target(".none")}; got[0] != h.home+"/.kube" || got[1] != h.home+"/.config/gh" || got[2] != "" {
			t.Errorf("the links lead to %q", got)
		}
	}
	h.link(t, ".config/gh")
	if h.target(".kube") != "" || h.target(".config/gh") == "" {
		t.Error("a link that is no longer configured stays, or another one is gone")
	}
	h.link(t)
	if _, err := os.Lstat(h.dir + homeMark); h.target(".config/gh") != "" || err == nil {
		t.Error("without entries a link or the list of links stays")
	}
}

func TestLinkHome_LeadsToTheRealPathOfALink(t *testing.T) {
	t.Parallel()
	h := newHomeFixture(t)
	if err := os.Symlink(filepath.Join(h.home, ".kube"), filepath.Join(h.home, ".link")); err != nil {
		t.Fatal(err)
	}
	h.link(t, ".link")
	if got, want := h.target(".link"), filepath.Join(h.home, ".kube"); got != want {
		t.Errorf("the link leads to %s, not %s", got, want)
	}
}

func TestLinkHome_KeepsWhatTheProcessHasCreated(t *testing.T) {
	t.Parallel()
	h := newHomeFixture(t)
	own := filepath.Join(h.dir, ".kube")
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "cache"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.link(t, ".kube")
	if _, err := os.Stat(own + ".own/cache"); err != nil || h.target(".kube") == "" {
		t.Errorf("the process's own directory: %v", err)
	}
	h.link(t)
	if err := os.Mkdir(own, 0o700); err != nil { // the process creates it again
		t.Fatal(err)
	}
	if err := linkHome(h.dir, h.home, []string{".kube"}); err == nil {
		t.Error("one of two own directories would be lost")
	}
	h.link(t) // removes no directory
	if _, err := os.Stat(own); err != nil {
		t.Error(err)
	}
}

// The process has replaced a directory on the path of an entry with a link that leads out of the private directory.
// linkHome does not follow that link.
func TestLinkHome_DoesNotFollowLinksOfTheProcess(t *testing.T) {
	t.Parallel()
	h := newHomeFixture(t)
	outside := filepath.Join(filepath.Dir(h.dir), "outside")
	if err := os.Mkdir(outside, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(h.dir, ".config")); err != nil {
		t.Fatal(err)
	}
	if err := linkHome(h.dir, h.home, []string{".config/gh"}); err == nil {
		t.Error("the link was followed")
	}
	if err := os.Symlink(h.home, filepath.Join(outside, "gh")); err != nil {
		t.Fatal(err)
	}
	h.link(t) // no longer configured
	if left, err := os.ReadDir(outside); err != nil || len(left) != 1 {
		t.Errorf("outside there is %v, %v", left, err)
	}
}
