package configedit_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

func FuzzJSON(f *testing.F) { fuzz(f, jsonLayout) }
func FuzzTOML(f *testing.F) { fuzz(f, tomlLayout) }
func FuzzYAML(f *testing.F) { fuzz(f, yamlLayout) }
func FuzzList(f *testing.F) { fuzz(f, listLayout) }

// fuzz edits a file with arbitrary content. An edit that is not refused can be undone, and takes less than a second.
func fuzz(f *testing.F, l configedit.Layout) {
	for _, c := range applyCases() {
		if c.layout == l {
			f.Add([]byte(c.before), c.value == nil)
			f.Add([]byte(c.after), c.value == nil)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, remove bool) {
		start := time.Now()
		e := configedit.Edit{Path: []string{"m", "a"}}
		if !remove {
			e.Value = server("a")
		}
		change, err := configedit.Apply(l, bytes.Clone(data), e)
		if took := time.Since(start); took > time.Second {
			t.Errorf("%d bytes took %s", len(data), took)
		}
		if err != nil {
			if err.Error() == "" {
				t.Error("the error has no message")
			}
			return
		}
		m, err := change.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		undone, err := m.Undo(change.After)
		if err != nil || !bytes.Equal(undone.Data, data) {
			t.Errorf("undone: %q, %v", undone.Data, err)
		}
	})
}
