package clientsetup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

const (
	personsMesh = `# mine
data: d
auth:
  tokens:
    - name: me # the boss
      token: ${env:T}
servers:
    own:
        http: {url: "https://own"}
policies: [p]
`
	personsServer = "    own:\n        http: {url: \"https://own\"}\n"
)

// A meshRun changes the configuration of one mesh.
type meshRun struct {
	t    *testing.T
	data string
	path string
	key  []byte
}

func newMeshRun(t *testing.T) *meshRun {
	t.Helper()
	return &meshRun{t: t, data: t.TempDir(), path: filepath.Join(t.TempDir(), "sluice.yaml"), key: make([]byte, 32)}
}

func (r *meshRun) state() *State {
	r.t.Helper()
	s, err := LoadState(r.data)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *meshRun) read() string {
	r.t.Helper()
	raw, err := os.ReadFile(r.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.t.Fatal(err)
	}
	return string(raw)
}

func (r *meshRun) write(content string) {
	r.t.Helper()
	if err := os.WriteFile(r.path, []byte(content), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *meshRun) file(client string, servers ...string) MeshFile {
	m := MeshFile{Data: r.data, User: "ana", Operator: "/t/operator", Tokens: map[string]string{client: "/t/" + client}}
	m.References = make(map[SecretKey]string)
	for _, name := range servers {
		m.Servers = append(m.Servers, Server{Name: name, Definition: Definition{Command: []string{name}, Env: []Setting{{Name: "KEY", Value: "v", Secret: true}}}})
		m.References[SecretKey{name, "KEY"}] = "${file:/s/" + name + "/KEY}"
	}
	return m
}

// init adds a client and servers, as `sluice init` does. If the parameter killed is true, it stops before it writes the
// configuration.
func (r *meshRun) init(killed bool, client string, servers ...string) {
	r.t.Helper()
	before := r.read()
	s := r.state()
	e, err := r.file(client, servers...).Change([]byte(before))
	if err == nil {
		err = s.RecordMesh(r.key, r.path, e)
	}
	if err == nil {
		err = s.Create(r.path, e.After)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	switch {
	case killed && before == "":
		err = os.Remove(r.path)
	case killed:
		r.write(before)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// observe sets configured servers to `mode: observe`, as `sluice init --observe` does.
func (r *meshRun) observe(names ...string) *MeshEdit {
	r.t.Helper()
	before := r.read()
	s, m := r.state(), r.file("cursor")
	m.Until, m.Observe = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC), names
	e, err := m.Change([]byte(before))
	if err == nil {
		err = s.RecordMesh(r.key, r.path, e)
	}
	if err == nil {
		err = s.Create(r.path, e.After)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return e
}

// hook adds a client to the hooks, as `sluice hook install` does. If the parameter present is false, it removes the
// client, as `sluice hook remove` does.
func (r *meshRun) hook(client string, present bool) {
	r.t.Helper()
	before := []byte(r.read())
	after, err := r.file(client).Edit(before)
	if err != nil {
		r.t.Fatal(err)
	}
	edit := configedit.Edit{Path: []string{"hooks", client}}
	if present {
		edit.Value = configedit.Object{{Name: "client", Value: client}}
	}
	change, err := configedit.Apply(yamlHooks, after, edit)
	if err == nil {
		err = RecordRewrite(r.data, r.path, before, change.After)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.write(string(change.After))
}

func (r *meshRun) replace(old, with string) {
	r.t.Helper()
	now := r.read()
	if !strings.Contains(now, old) {
		r.t.Fatalf("the configuration has no %q:\n%s", old, now)
	}
	r.write(strings.Replace(now, old, with, 1))
}

// undoneMesh is a test case: a mesh whose configuration is changed before undo.
type undoneMesh struct {
	// before is the content before `init`, or empty if there is no configuration.
	before string
	run    func(r *meshRun)
	// after is the content after undo. It is empty if the content is not compared. The content must contain the strings
	// in has, and must not contain the strings in hasNot.
	after       string
	has, hasNot []string
	removed     []string
	restored    []string
	kept        []string
	// ours is true if Sluice wrote everything that undo leaves in the configuration. In that case, a later undo removes
	// the file after the hook is removed.
	ours bool
	// gone is true if a person has removed the configuration.
	gone bool
	// edited is true if a person has edited the configuration after `init`, so that undo can't be exact.
	edited bool
}

func undoneMeshes() map[string]undoneMesh {
	all := []string{"servers.a", "servers.b", "auth.tokens.operator", "auth.tokens.cursor"}
	return map[string]undoneMesh{
		"init alone":        {run: func(r *meshRun) { r.init(false, "cursor", "a", "b") }},
		"init twice":        {run: func(r *meshRun) { r.init(false, "cursor", "a"); r.init(false, "zed", "b") }},
		"init and a killed": {run: func(r *meshRun) { r.init(true, "cursor", "a"); r.init(false, "cursor", "a") }},
		"a hook comes and goes": {run: func(r *meshRun) {
			r.init(false, "cursor", "a")
			r.hook("codex", true)
			r.init(false, "codex", "b")
			r.hook("codex", false)
		}},
		"a person comes and goes": {run: func(r *meshRun) {
			r.init(false, "cursor", "a")
			r.replace("listen:", "# mine\nlisten:")
			r.init(false, "zed", "b")
			r.replace("# mine\n", "")
		}},
		"a hook stays": {
			run:     func(r *meshRun) { r.init(false, "codex", "a"); r.init(false, "cursor", "b"); r.hook("codex", true) },
			has:     []string{`name: "operator"`, `name: "codex"`, `client: "codex"`},
			hasNot:  []string{"cursor", "command:"},
			removed: []string{"servers.a", "servers.b", "auth.tokens.cursor"}, ours: true,
		},
		"a person added a server": {
			run: func(r *meshRun) {
				r.init(false, "cursor", "a")
				r.replace("servers:\n", "servers:\n"+strings.ReplaceAll(personsServer, "    ", "  "))
			},
			has:    []string{`name: "operator"`, "https://own"},
			hasNot: []string{"cursor", "command:"}, removed: []string{"servers.a", "auth.tokens.cursor"},
		},
		"a configuration of a person": {before: personsMesh, run: func(r *meshRun) { r.init(false, "cursor", "a", "b") }, after: personsMesh, removed: all},
		"a configuration of a person, twice": {
			before: personsMesh, run: func(r *meshRun) { r.init(false, "cursor", "a"); r.init(false, "zed", "b") }, after: personsMesh,
			removed: []string{"servers.a", "servers.b", "auth.tokens.operator", "auth.tokens.cursor", "auth.tokens.zed"},
		},
		"a configuration of a person, killed": {before: personsMesh, run: func(r *meshRun) { r.init(true, "cursor", "a", "b") }, after: personsMesh},
		"a configuration of a person, edited since": {
			before: personsMesh, run: func(r *meshRun) { r.init(false, "cursor", "a", "b"); r.replace("# mine", "# ours") },
			after: strings.Replace(personsMesh, "# mine", "# ours", 1), removed: all,
		},
		"an entry of init was edited": {
			before: personsMesh, run: func(r *meshRun) { r.init(false, "cursor", "a", "b"); r.replace(`"a"`, `"other"`) },
			has: []string{"# mine", "other", "/s/a/KEY"}, hasNot: []string{"/s/b/KEY", "cursor"},
			removed: []string{"servers.b", "auth.tokens.operator", "auth.tokens.cursor"}, kept: []string{"servers.a: it was changed"},
		},
		"an observed server of a person": {
			before: personsMesh, run: func(r *meshRun) { r.init(false, "cursor", "a"); r.observe("a", "own") },
			after: personsMesh, removed: []string{"servers.a", "auth.tokens.operator", "auth.tokens.cursor"}, restored: []string{"servers.own"},
		},
		"an observed server, enforced since": {
			before: personsMesh, run: func(r *meshRun) {
				r.init(false, "cursor", "a")
				r.observe("a", "own")
				r.replace("        mode: \"observe\"\n        until: \"2026-12-01T12:00:00Z\"\n", "")
			},
			after: personsMesh, removed: []string{"servers.a", "auth.tokens.operator", "auth.tokens.cursor"}, edited: true,
		},
		"the configuration was removed": {run: func(r *meshRun) { r.init(false, "cursor", "a"); _ = os.Remove(r.path) }, gone: true},
	}
}

// Undo removes from the configuration only the entries that `init` wrote. If the configuration has no other entries,
// undo removes the file.
func TestUndoMesh_RemovesWhatInitWrote(t *testing.T) {
	t.Parallel()
	for name, c := range undoneMeshes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newMeshRun(t)
			if c.before != "" {
				r.write(c.before)
			}
			c.run(r)
			s := r.state()
			undone, err := s.UndoMesh(r.key, r.path)
			if err != nil || s.Empty() == undone.Ours {
				t.Fatalf("undo returns %+v, %v, and the state is %+v", undone, err, s)
			}
			c.check(t, r, undone)
			if c.ours {
				removed, _, err := s.RemoveCreated(func(string) bool { return false })
				if err != nil || len(removed) > 0 {
					t.Errorf("the files %v are removed, %v", removed, err)
				}
				r.hook("codex", false)
			}
			second, err := r.state().UndoMesh(r.key, r.path)
			if err != nil || len(second.Removed) > 0 {
				t.Errorf("a second undo returns %+v, %v", second, err)
			}
			if c.ours && (second.Exists || !r.state().Empty()) {
				t.Errorf("without the hook, undo returns %+v", second)
			}
		})
	}
}

func (c undoneMesh) check(t *testing.T, r *meshRun, undone MeshUndone) {
	t.Helper()
	text := r.read()
	stays := c.after != "" || len(c.has) > 0
	if undone.Ours != c.ours || undone.Exists != stays || undone.Deleted == stays && !c.gone || !stays && text != "" || undone.Exact != (c.after == c.before && c.before != "") && !c.edited {
		t.Errorf("undo returns %+v, and the configuration is\n%s", undone, text)
	}
	if diff := cmp.Diff(c.after, text); c.after != "" && diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, want := range c.has {
		if !strings.Contains(text, want) {
			t.Errorf("the configuration has no %q:\n%s", want, text)
		}
	}
	for _, unwanted := range c.hasNot {
		if strings.Contains(text, unwanted) {
			t.Errorf("the configuration has %q:\n%s", unwanted, text)
		}
	}
	if diff := cmp.Diff(c.removed, undone.Removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(c.restored, undone.Restored); diff != "" {
		t.Errorf("restored (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(c.kept, undone.Kept); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	if len(c.kept) > 0 && (!undone.Refers("/s/a/KEY") || undone.Refers("/s/b/KEY")) {
		t.Errorf("the references are %q", undone.Rest)
	}
}

// A server whose configuration is written in braces can't be edited, so it does not get `mode: observe`. All other
// servers get it.
func TestMeshFile_NamesServersThatItCannotObserve(t *testing.T) {
	t.Parallel()
	r := newMeshRun(t)
	r.write(personsMesh + "  # end\n")
	r.replace(personsServer, personsServer+"    flow: {http: {url: \"https://flow\"}}\n")
	e := r.observe("flow", "own")
	if len(e.NotObserved) != 1 || !strings.Contains(e.NotObserved["flow"], "braces") {
		t.Errorf("not observed: %v", e.NotObserved)
	}
	want := personsServer + "        mode: \"observe\"\n        until: \"2026-12-01T12:00:00Z\"\n    flow: {"
	if !strings.Contains(r.read(), want) {
		t.Errorf("the configuration is\n%s", r.read())
	}
}
