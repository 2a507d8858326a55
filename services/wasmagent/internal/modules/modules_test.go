package modules_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/modules"
)

// Case W12. Only shipped guests and listed guests can be loaded. The file of a listed guest must have the listed
// digest.
func TestLoad_OnlyShippedAndListedModules(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mine.wasm")
	if err := os.WriteFile(path, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("one"))
	listed := modules.Listed{Path: path, SHA256: hex.EncodeToString(sum[:])}
	g, err := modules.New(map[string]modules.Listed{"mine": listed})
	if err != nil {
		t.Fatal(err)
	}
	if text, digest, err := g.Load("mine"); err != nil || string(text) != "one" || digest != listed.SHA256 {
		t.Errorf("the listed guest is %s %s, %v", text, digest, err)
	}
	if got, want := g.Names(), []string{"agent", "echo", "mine", "script"}; !slices.Equal(got, want) {
		t.Errorf("there are %v, want %v", got, want)
	}
	if _, _, err := g.Load("other"); !errors.Is(err, modules.ErrUnknown) || !strings.Contains(err.Error(), "[agent echo mine script]") {
		t.Errorf("a guest that is not listed: %v", err)
	}
	if err := os.WriteFile(path, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := g.Load("mine"); !errors.Is(err, modules.ErrMismatch) {
		t.Errorf("a file that has changed: %v", err)
	}
	for name, l := range map[string]modules.Listed{"mine": listed, "script": listed, "gone": {Path: path + "x", SHA256: listed.SHA256}} {
		if _, err := modules.New(map[string]modules.Listed{name: l}); err == nil || !strings.Contains(err.Error(), "agents.guests."+name) {
			t.Errorf("%s is accepted: %v", name, err)
		}
	}
}
