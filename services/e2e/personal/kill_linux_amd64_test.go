package personal_test

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// killedClients lists the clients' files in the home directories in which the tests kill `sluice init`.
var killedClients = []string{claudePath, cursorPath}

// newKilledHome creates a home directory with the files of two clients. One file has comments. The other file has a
// byte order mark and Windows line endings. Both files contain a secret.
func newKilledHome(t *testing.T) *home {
	t.Helper()
	h := newHome(t)
	h.write(claudePath, `{"numStartups": 3, // a comment
  "mcpServers": {"my": {"command": "`+h.program+`", "args": ["demo-server", "--stdio"], "env": {"TOKEN": "`+secret+`"}}}}`)
	h.write(cursorPath, cursorFile(h))
	return h
}

// killed holds the contents of the clients' files before and after a complete run of `sluice init`, with the placeholder
// HOME in place of the home directory.
type killed struct {
	t *testing.T
	// The maps before and after contain the contents of the clients' files, by path.
	before, after map[string]string
	// The slice init contains the steps of the command `sluice init`, and the slice undo contains the steps of `sluice
	// init --undo`. A step is a system call that creates, renames or removes a file.
	init, undo []string
}

// learn runs `sluice init` and then `sluice init --undo`, and records the steps of both commands.
func learn(t *testing.T) *killed {
	t.Helper()
	h := newKilledHome(t)
	k := &killed{t: t, before: clientFiles(h)}
	var code int
	var out string
	if k.init, code, out = h.trace(0, "init", "--yes"); code != 0 {
		t.Fatalf("init exits with %d: %s", code, out)
	}
	k.after = clientFiles(h)
	if k.undo, code, out = h.trace(0, "init", "--undo", "--yes"); code != 0 {
		t.Fatalf("undo exits with %d: %s", code, out)
	}
	checkRestored(h, k.before)
	for _, path := range killedClients {
		if k.before[path] == k.after[path] {
			t.Fatalf("init does not change %s", path)
		}
	}
	t.Logf("init has %d steps, and undo %d", len(k.init), len(k.undo))
	return k
}

func clientFiles(h *home) map[string]string {
	h.t.Helper()
	out := make(map[string]string)
	for _, path := range killedClients {
		out[path] = strings.ReplaceAll(h.read(path), h.dir, "HOME")
	}
	return out
}

// checkOldOrNew checks that each client's file has either its content from before `sluice init` or its content from
// after `sluice init`.
func (k *killed) checkOldOrNew(h *home) {
	h.t.Helper()
	for path, text := range clientFiles(h) {
		if text != k.before[path] && text != k.after[path] {
			h.t.Errorf("%s has neither the old nor the new content, but\n%s", path, text)
		}
	}
}

// checkRestored checks that the clients' files have their original content, and that `sluice init` has left nothing
// behind. Only the mesh's records, its own keys, and lock files are kept.
func checkRestored(h *home, before map[string]string) {
	h.t.Helper()
	for path, text := range clientFiles(h) {
		if text != before[path] {
			h.t.Errorf("%s is not restored, but\n%s", path, text)
		}
	}
	kept := []string{"gateway", "identity", "policy", "approval", "wasmagent", "keys", "lock", "start.lock", "init/lock", "running", "up.log"}
	err := filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // the mesh is closing its databases
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(h.dir, path)
		raw, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if slices.Contains(killedClients, name) {
			return nil
		}
		if strings.Contains(string(raw), secret) {
			h.t.Errorf("%s contains the secret", name)
		}
		rest, inData := strings.CutPrefix(name, ".local/share/sluice/")
		if !inData || !slices.ContainsFunc(kept, func(k string) bool { return rest == k || strings.HasPrefix(rest, k+"/") }) {
			h.t.Errorf("%s is left", name)
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// kills returns the steps at which the test kills the program. If SLUICE_INIT_KILLS is "all", it returns all steps.
// Otherwise it returns as many random steps as SLUICE_INIT_KILLS says, or n if that variable is not set.
func kills(t *testing.T, steps []string, n int) []int {
	t.Helper()
	all := rand.Perm(len(steps))
	switch text := os.Getenv("SLUICE_INIT_KILLS"); text {
	case "all":
		n = len(all)
	case "":
	default:
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	return all[:min(n, len(all))]
}

// `sluice init` and `sluice init --undo` are killed before steps that the test has recorded. After that, each client's
// file has either its original content or its new content. `sluice init --undo` restores everything, even if `sluice
// init` runs again first.
func TestInit_KilledAtEachStep(t *testing.T) {
	t.Parallel()
	k := learn(t)
	for _, step := range kills(t, k.init, 3) {
		for _, next := range nextCommands() {
			t.Run(strconv.Itoa(step)+" "+short(k.init[step])+" then "+next, func(t *testing.T) {
				t.Parallel()
				h := newKilledHome(t)
				k.killAndRestore(h, step+1, next, "init", "--yes")
			})
		}
	}
	for _, step := range kills(t, k.undo, 2) {
		for _, next := range nextCommands() {
			t.Run(strconv.Itoa(step)+" of undo, "+short(k.undo[step])+" then "+next, func(t *testing.T) {
				t.Parallel()
				h := newKilledHome(t)
				h.check(0, []string{"init", "--yes"})
				k.killAndRestore(h, step+1, next, "init", "--undo", "--yes")
			})
		}
	}
}

// nextCommands returns what to run after `sluice init` or `sluice init --undo` was killed: "undo" means `sluice init
// --undo` alone, and "init" means `sluice init` and then `sluice init --undo`. If SLUICE_INIT_KILLS is set,
// nextCommands returns both. Otherwise it returns one of them at random.
func nextCommands() []string {
	both := []string{"undo", "init"}
	if os.Getenv("SLUICE_INIT_KILLS") != "" {
		return both
	}
	return both[rand.IntN(len(both)):][:1]
}

// killAndRestore runs the command, kills it before the given step, and then undoes all changes. If next is "init", it
// runs `sluice init` again before the undo.
func (k *killed) killAndRestore(h *home, step int, next string, args ...string) {
	h.t.Helper()
	k.kill(h, step, args...)
	if next == "init" {
		k.initAgain(h)
	}
	h.check(0, []string{"init", "--undo", "--yes"})
	checkRestored(h, k.before)
}

func (k *killed) initAgain(h *home) {
	h.t.Helper()
	h.check(0, []string{"init", "--yes"})
	for path, text := range clientFiles(h) {
		if text != k.after[path] {
			h.t.Errorf("after init runs again, %s has the content\n%s", path, text)
		}
		leftovers, err := filepath.Glob(filepath.Join(h.dir, filepath.Dir(path), "*.sluice-*")) // they may have the secret
		if err != nil || len(leftovers) > 0 {
			h.t.Errorf("after init runs again, these files are left: %v, %v", leftovers, err)
		}
	}
}

func (k *killed) kill(h *home, step int, args ...string) {
	h.t.Helper()
	steps, code, out := h.trace(step, args...)
	if code != -1 {
		h.t.Fatalf("%v has only %d steps this time, and exits with %d: %s", args, len(steps), code, out)
	}
	k.checkOldOrNew(h)
}

// short returns a step without directories, and without the random and the hexadecimal parts of file names.
func short(step string) string {
	name, path, _ := strings.Cut(step, " ")
	base, _, _ := strings.Cut(filepath.Base(path), "-")
	return name + " " + filepath.Base(filepath.Dir(path)) + "/" + base
}
