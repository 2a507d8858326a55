package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/secretstore"
)

// undo restores the clients' files. If none of them refers to the mesh any more, it also ends the mesh and removes its
// configuration, tokens and secrets. The journal stays.
func (s *setup) undo(ctx context.Context) (err error) {
	if s.state, err = clientsetup.LoadState(s.paths.Data); err != nil {
		return err
	}
	if s.state.Empty() {
		if err := s.state.End(); err != nil { // a killed init may have left a temporary file
			return err
		}
		s.printf("Nothing to undo: init has not changed anything, or it was undone.")
		return nil
	}
	if err := s.checkMesh(); err != nil && !s.state.Elsewhere {
		return err
	}
	var ids []string
	if len(s.clients) < len(clientIDs()) {
		for _, c := range s.clients {
			ids = append(ids, c.ID)
		}
	}
	if err := s.confirm(ctx, s.flags.yes, fmt.Sprintf("Restore %d change(s) of clients' files?", len(s.state.Files))); err != nil {
		if errors.Is(err, errNoTerminal) {
			return fmt.Errorf("nothing was changed: %w", errNoTerminal)
		}
		return errors.New("nothing was changed")
	}
	key, err := s.oldKey(ctx)
	if err != nil {
		return err
	}
	done, err := s.state.UndoFiles(ctx, key, ids)
	failed := s.printUndone(done)
	if err != nil {
		return err
	}
	if len(s.state.Files) > 0 {
		s.printf("The mesh stays, because these clients still use it: %s", s.stateClients())
	} else if err := s.removeMesh(ctx); err != nil {
		return err
	}
	if failed {
		return errSilent
	}
	return nil
}

// oldKey returns the key that encrypts the old entries. It is nil if init was stopped before it changed a file.
func (s *setup) oldKey(ctx context.Context) (key []byte, err error) {
	if s.secrets, err = secretstore.OpenKind(s.paths.Data, s.state.Store); err != nil {
		return nil, err
	}
	key, err = s.secrets.ExistingKey(ctx, sealKey)
	if errors.Is(err, secretstore.ErrNoKey) && len(s.state.Files) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the key of the old entries: %w", err)
	}
	return key, nil
}

// printUndone prints what happened to each file, and reports whether something stayed.
func (s *setup) printUndone(done []clientsetup.Undone) (failed bool) {
	for _, d := range done {
		path := s.shownPath(d.Path)
		switch {
		case d.Err != nil:
			failed = true
			s.printf("%s was not restored: %v", path, d.Err)
		case len(d.Kept) > 0:
			failed = true
			for _, kept := range d.Kept {
				s.printf("%s: %s: the entry stays. Edit it by hand if it starts `sluice stdio`.", path, kept)
			}
		case d.Exact:
			s.printf("%s has the content that it had before init, byte for byte.", path)
		default:
			s.printf("%s: the entries that init had changed are restored. Other changes since then stay.", path)
		}
	}
	return failed
}

func (s *setup) stateClients() string {
	text := ""
	seen := make(map[string]bool)
	for _, f := range s.state.Files {
		if !seen[f.Client] {
			if text != "" {
				text += ", "
			}
			text += f.Client
			seen[f.Client] = true
		}
	}
	return text
}

// removeMesh ends the mesh and removes what init has created for it, except for changed files and the records.
func (s *setup) removeMesh(ctx context.Context) error {
	if s.state.Elsewhere {
		return s.removeElsewhere(ctx)
	}
	if err := s.stopMesh(ctx); err != nil {
		return err
	}
	// The configuration goes first. If this process is killed then, init can create it again.
	changed, err := s.state.RemoveCreated()
	if err != nil {
		return err
	}
	if err := s.removeSecrets(ctx); err != nil {
		return err
	}
	for _, path := range changed {
		s.printf("%s stays, because it was changed since init wrote it.", s.shownPath(path))
	}
	if err := s.nameService(); err != nil {
		return err
	}
	tokens := filepath.Join(s.paths.Data, "tokens")
	if err := os.RemoveAll(tokens); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the tokens: %w", err)
	}
	if err := s.state.End(); err != nil {
		return err
	}
	s.printf("The mesh's configuration, tokens and secrets are removed. Its records and the servers' private folders stay in %s: remove the folder if you don't need them.", s.shownPath(s.paths.Data))
	return nil
}

func (s *setup) removeSecrets(ctx context.Context) error {
	if err := s.state.RemoveSecrets(ctx, s.secrets.Delete); err != nil {
		return err
	}
	if err := s.secrets.DeleteKey(ctx, sealKey); err != nil {
		return err
	}
	return s.secrets.RemoveLeftovers()
}
