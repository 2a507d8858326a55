package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// While `init` waits for an answer, a person adds a server to the mesh's configuration. `init` then refuses to
// overwrite the file.
func TestCheckUnchanged_RefusesAFileThatWasChanged(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	for _, before := range []string{"", "servers: {a: {}}\n"} {
		if before != "" {
			if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		files := []meshFile{{path: path, before: []byte(before)}}
		if err := new(setup).checkUnchanged(files); err != nil {
			t.Errorf("without a change, the error is %v", err)
		}
		if err := os.WriteFile(path, []byte(before+"# mine\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := new(setup).checkUnchanged(files); err == nil || !strings.Contains(err.Error(), "was changed meanwhile") {
			t.Errorf("after a change, the error is %v", err)
		}
	}
}
