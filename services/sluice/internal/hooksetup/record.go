package hooksetup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// A Record describes the changes by Install, so that Remove can undo them. It contains no content of the file.
type Record struct {
	Client  string `json:"client"`
	Path    string `json:"path"`
	Project string `json:"project,omitzero"`
	// Missing is true if the file did not exist before Install, and only Install has added content to it.
	Missing bool `json:"missing,omitzero"`
	// Before is the digest of the file before Install. If consecutive installs were the only changes to the file, Before
	// is the digest before the first of them.
	Before string `json:"before,omitzero"`
	// After is the digest of the file after the newest call to Install.
	After string `json:"after"`
	// Steps contains the changes in the order in which they were made.
	Steps []Step `json:"steps"`
}

// A Step records one item that Install added to a list. If the list did not exist, Created is the manifest of the
// change that created the list.
type Step struct {
	Event   string               `json:"event"`
	Created *configedit.Manifest `json:"created,omitzero"`
	// Parent is true if Install also created the object that contains all lists of hooks.
	Parent bool `json:"parent,omitzero"`
}

// keep adds the steps from an earlier call to Install that registered another path for the program. The earlier steps
// stay valid even if other programs have changed the file. A manifest is used only if the file has exactly the content
// that the step wrote, and Remove removes only empty lists.
func (r *Record) keep(earlier []Step) {
	for _, step := range earlier {
		i := slices.IndexFunc(r.Steps, func(s Step) bool { return s.Event == step.Event })
		if i < 0 {
			r.Steps = append(r.Steps, step)
			continue
		}
		if r.Steps[i].Created == nil {
			r.Steps[i].Created = step.Created
		}
		r.Steps[i].Parent = r.Steps[i].Parent || step.Parent
	}
}

// recordPath returns the path of the record for a target.
func (t Target) recordPath(data string) string {
	name := t.Client
	if t.Project != "" {
		name += "-" + digest([]byte(t.Project))[:16]
	}
	return filepath.Join(data, "hooks", name+".json")
}

// Records returns the paths of all records in a data directory.
func Records(data string) ([]string, error) {
	return filepath.Glob(filepath.Join(data, "hooks", "*.json"))
}

// ReadRecords returns all records in a data directory.
func ReadRecords(data string) ([]Record, error) {
	paths, err := Records(data)
	if err != nil {
		return nil, err
	}
	out := make([]Record, len(paths))
	for i, name := range paths {
		raw, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(raw, &out[i])
		}
		if err != nil {
			return nil, fmt.Errorf("read what hook install has changed: %w", err)
		}
	}
	return out, nil
}

// record reads the record for a target. It returns an empty record if no record exists.
func (t Target) record(data string) (record Record, err error) {
	raw, err := os.ReadFile(t.recordPath(data))
	if errors.Is(err, fs.ErrNotExist) {
		return record, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &record)
	}
	if err != nil {
		return record, fmt.Errorf("read what hook install has changed: %w", err)
	}
	return record, nil
}

func (t Target) forget(data string) error {
	if err := os.Remove(t.recordPath(data)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of hook install: %w", err)
	}
	return nil
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
