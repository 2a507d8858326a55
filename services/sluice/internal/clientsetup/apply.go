package clientsetup

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/sluice-mesh/sluice/services/sluice/internal/atomicfile"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
	"github.com/sluice-mesh/sluice/services/sluice/internal/secretstore"
)

// settle is the time that Sluice waits after it has changed a file. It then reads the file again, to detect whether the
// client has overwritten the change.
const (
	settle = 2 * time.Second
	// settleEmpty is the minimum time that Sluice waits before it reads an empty or missing file again, because a client
	// may be writing the file.
	settleEmpty = 500 * time.Millisecond
)

// A Change is a planned change to one client's file.
type Change struct {
	File    clientconfig.File
	Before  []byte
	After   []byte
	Entries []string

	change *configedit.Change
}

// A Rewrite returns the command that a client's entry runs to reach a server through the mesh.
type Rewrite func(f clientconfig.File, server string) (command string, args []string)

// Changes returns the changes to the clients' files. If a file can't be edited, Changes moves its entries to p.Left.
func (p *Plan) Changes(rewrite Rewrite) []Change {
	var out []Change
	var wraps []Wrap
	for i, found := range p.Files {
		var edits []configedit.Edit
		var wrapsInFile []Wrap
		change := Change{File: found.File, Before: found.Data}
		for _, w := range p.Wraps {
			if w.File != i {
				continue
			}
			command, args := rewrite(found.File, w.Server)
			old := &w.Entry
			if w.Added {
				old = nil
			}
			edits = append(edits, found.File.StdioEdit(w.Entry.Name, old, command, args))
			wrapsInFile, change.Entries = append(wrapsInFile, w), append(change.Entries, w.Entry.Name)
		}
		if len(edits) == 0 {
			continue
		}
		changed, err := configedit.Apply(found.File.Layout, found.Data, edits...)
		if err != nil {
			for _, w := range wrapsInFile {
				p.Left = append(p.Left, Left{w.File, w.Entry, err.Error()})
			}
			continue
		}
		change.After, change.change = changed.After, changed
		out, wraps = append(out, change), append(wraps, wrapsInFile...)
	}
	p.Wraps = wraps
	return out
}

// Write records the change in the state and then changes the client's file. It encrypts the original entries with the
// key, because they may contain secrets. If another program has changed the file since it was read, the error is
// [atomicfile.ErrChanged].
func (c Change) Write(ctx context.Context, s *State, key []byte) error {
	manifest, err := c.change.Manifest()
	if err != nil {
		return fmt.Errorf("%s: %w", c.File.Path, err)
	}
	if manifest.Old, err = secretstore.Seal(key, manifest.Old, c.File.Path); err != nil {
		return fmt.Errorf("%s: encrypt the old entries: %w", c.File.Path, err)
	}
	change := FileChange{Client: c.File.Client.ID, Path: c.File.Path, Within: c.File.Project, Entries: c.Entries, Manifest: manifest}
	if info, err := os.Lstat(c.File.Path); err == nil {
		change.Link = info.Mode()&fs.ModeSymlink != 0
	}
	s.Files = append(s.Files, change)
	if err := s.Save(); err != nil {
		return err
	}
	if err := s.writer(change).Replace(ctx, change.Path, c.Before, c.After); err != nil {
		return fmt.Errorf("%s: %w", change.Path, err)
	}
	return nil
}

// writer returns the writer for a client's file.
func (s *State) writer(c FileChange) *atomicfile.Writer {
	return &atomicfile.Writer{Lock: s.lockPath(), Settle: s.settle, Within: c.Within}
}
