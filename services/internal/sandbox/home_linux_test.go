package sandbox_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

// The user's HOME contains the mesh's data directory and is private. The rules allow reading one directory in HOME and
// writing another one. A link in the program's own directory leads to the readable directory.
func TestSandbox_OpensOneDirectoryOfAPrivateHome(t *testing.T) {
	eachMechanism(t, func(h *fixture) {
		home := h.rules.Home
		put(t, filepath.Join(home, ".kube", "config"), "secret of kube")
		put(t, filepath.Join(home, ".aws", "credentials"), "secret of aws")
		azure := filepath.Join(home, ".azure")
		put(t, filepath.Join(azure, "profile"), "secret of azure")
		h.rules.Write = []string{azure}
		h.rules.Private, h.rules.Read, h.rules.Home = append(h.rules.Private, home), []string{filepath.Join(home, ".kube"), azure}, ""
		if err := os.Symlink(filepath.Join(home, ".kube"), filepath.Join(h.Own, ".kube")); err != nil {
			t.Fatal(err)
		}
	}, func(t *testing.T, h *fixture, s *sandbox.Sandbox) {
		home := filepath.Dir(h.dir)
		for script, want := range map[string]string{
			"cat $HOME/.kube/config":                                            "secret of kube",
			"cat " + home + "/.kube/config":                                     "secret of kube",
			"cat " + home + "/.aws/credentials":                                 "",
			"cat " + h.dir + "/shared/note":                                     "",
			"cat " + h.Token:                                                    "",
			"echo x >> $HOME/.kube/config && echo y":                            "",
			"echo x > $HOME/.kube/new && echo y":                                "",
			"echo x > " + home + "/new && echo y":                               "",
			"echo x > " + home + "/.azure/lock && cat " + home + "/.azure/lock": "x", // both rules name it
			"echo x > $HOME/new && cat $HOME/new":                               "x",
		} {
			if got := strings.TrimSpace(h.shell(t, s, "{ "+script+"; } 2>/dev/null")); got != want {
				t.Errorf("%s: %q, want %q", script, got, want)
			}
		}
	})
}
