package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/secretstore"
)

// undo restores the clients' files. If no change to a client's file remains, undo also stops the mesh and removes the
// configuration, policies, tokens and secrets that `init` wrote for it. The journal stays.
func (s *setup) undo(ctx context.Context) (err error) {
	if s.state, err = clientsetup.LoadState(s.paths.Data); err != nil {
		return err
	}
	if s.state.Empty() {
		return s.undoOnlyHooks(ctx)
	}
	if err := s.checkMesh(); err != nil && !s.state.Elsewhere {
		return err
	}
	if err := s.confirmUndo(ctx); err != nil {
		return err
	}
	if _, err := s.undoHooks(ctx); err != nil {
		return err
	}
	if s.state, err = clientsetup.LoadState(s.paths.Data); err != nil { // removing a hook also changes the state
		return err
	}
	key, err := s.oldKey(ctx)
	if err != nil {
		return err
	}
	var ids []string
	if len(s.clients) < len(clientIDs()) {
		for _, c := range s.clients {
			ids = append(ids, c.ID)
		}
	}
	done, err := s.state.UndoFiles(ctx, key, clientsetup.UndoOptions{
		Clients: ids, Force: s.flags.force, Scanned: s.state.Scan(s.system, s.flags.project),
	})
	failed := s.printUndone(done)
	if err != nil {
		return err
	}
	if len(s.state.Files) > 0 {
		s.printMeshStays()
	} else if err := s.removeMesh(ctx, key); err != nil {
		return err
	}
	if failed {
		return errSilent
	}
	return nil
}

// undoOnlyHooks is called if there are no changes by `init` to undo. It removes the hooks from `hook install`.
func (s *setup) undoOnlyHooks(ctx context.Context) error {
	if err := s.state.End(); err != nil { // a killed init may have left a temporary file
		return err
	}
	found, err := s.undoHooks(ctx)
	switch {
	case err != nil:
		return err
	case found:
		s.printf("init has not changed anything else. Your mesh's configuration stays: %s.", s.shownPath(s.paths.Config))
	default:
		s.printf("Nothing to undo: init has not changed anything, or it was undone.")
	}
	return nil
}

// confirmUndo asks the person for confirmation. It returns an error unless the person agrees.
func (s *setup) confirmUndo(ctx context.Context) error {
	question := fmt.Sprintf("Restore %d change(s) of clients' files?", len(s.state.Files))
	if len(s.state.Files) == 0 {
		question = "Remove what init wrote for the mesh? No client's file contains a change by init any longer."
	}
	err := s.confirm(ctx, s.flags.yes, question)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoTerminal):
		return fmt.Errorf("nothing was changed: %w", errNoTerminal)
	default:
		return errors.New("nothing was changed")
	}
}

// oldKey returns the key that encrypts the original entries in clients' files, or nil if `init` was stopped before it
// changed a file.
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

// printUndone prints the result for each file, and reports whether a change could not be undone.
func (s *setup) printUndone(done []clientsetup.Undone) (failed bool) {
	kept, held := false, false
	for _, d := range done {
		path := s.shownPath(d.Path)
		for _, name := range d.Gone {
			s.printf("%s: %s was removed since init, so there is nothing to restore.", path, name)
		}
		for _, k := range d.Kept {
			s.printKept(path, k.Name+" stays", k)
		}
		for _, k := range d.Held {
			s.printKept(path, k.Name+" can't be restored", k)
		}
		kept, held = kept || len(d.Kept) > 0, held || len(d.Held) > 0
		switch {
		case d.Err != nil:
			failed = true
			s.printf("%s was not restored: %v", path, d.Err)
		case len(d.Held) > 0:
		case d.Missing:
			s.printf("%s no longer exists, so there is nothing to restore.", path)
		case len(d.Kept) > 0:
		case d.Exact:
			s.printf("%s has the content that it had before init, byte for byte.", path)
		default:
			s.printf("%s: nothing of init is left in it. Other changes since init stay.", path)
		}
	}
	if kept {
		s.printf("To restore these entries over the changes, run %s.", s.command("init --undo --force"))
	}
	if held {
		s.printf("The entries that can't be restored stay recorded, with their secrets. Give each its old name and place again, or replace the entry that starts its server by what it was. Then run %s. %s forgets these entries and deletes their secrets.", s.command("init --undo"), s.command("init --undo --force"))
	}
	return failed || kept || held
}

// printKept prints an entry that is not restored. It prints the entry's original source without secrets, and the
// locations of the secrets.
func (s *setup) printKept(path, what string, k clientsetup.Kept) {
	home := s.system.Home + string(filepath.Separator)
	s.printf("%s: %s: %s. Before init it was:", path, what, strings.ReplaceAll(k.Reason, home, "~"+string(filepath.Separator)))
	source := hideSecretsOf([]clientconfig.Entry{k.Entry}).Replace(strings.TrimSpace(k.Source))
	for line := range strings.Lines(source) {
		s.printf("  %s", strings.TrimRight(line, "\r\n"))
	}
	for _, reference := range s.state.Secrets {
		parts := strings.FieldsFunc(strings.TrimSuffix(reference, "}"), func(r rune) bool { return strings.ContainsRune(`:/\`, r) })
		if n := len(parts); n > 2 && parts[n-2] == k.Server { //nolint:mnd // kind, server and name
			s.printf("  The value of %s is in %s.", parts[n-1], reference)
		}
	}
}

// printMeshStays prints the parts of the mesh that stay because clients still use them.
func (s *setup) printMeshStays() {
	if s.state.Elsewhere {
		s.printf("The tokens stay, because these clients still use a mesh of your team: %s", s.stateClients())
		return
	}
	content, _ := os.ReadFile(s.paths.Config) // if the file can't be read, the list is empty
	s.printf("The mesh stays with %s, its policies, tokens and secrets, and its servers %s, because these clients still use it: %s",
		s.shownPath(s.paths.Config), strings.Join(clientsetup.ServersIn(content), ", "), s.stateClients())
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

// removeMesh stops the mesh and removes the files that `init` created for it. It keeps files that were changed after
// `init`, and the journal's records. If the configuration stays, the policies, tokens and secrets in it stay too.
func (s *setup) removeMesh(ctx context.Context, key []byte) error {
	if s.state.Elsewhere {
		return s.removeElsewhere(ctx)
	}
	if err := s.stopMesh(ctx); err != nil {
		return err
	}
	// The configuration is removed first. Otherwise a later `init` could find it without its policies.
	mesh, err := s.state.UndoMesh(key, s.paths.Config)
	if err != nil {
		return err
	}
	used := func(policy string) bool {
		return slices.Contains(mesh.Servers, strings.TrimSuffix(filepath.Base(policy), ".yaml"))
	}
	policies, changed, err := s.state.RemoveCreated(used)
	if err != nil {
		return err
	}
	secrets, err := s.removeSecrets(ctx, mesh)
	if err != nil {
		return err
	}
	s.printMeshUndone(mesh, policies, changed, secrets)
	s.printStillWrapped(mesh)
	if err := s.nameService(); err != nil {
		return err
	}
	if err := s.removeTokens(mesh); err != nil {
		return err
	}
	if !mesh.Exists {
		if err := removeMeshEnvironment(s.paths.Data); err != nil {
			return err
		}
	}
	if err := s.state.End(); err != nil {
		return err
	}
	if mesh.Exists {
		s.printf("The mesh's data stays in %s.", s.shownPath(s.paths.Data))
	} else {
		s.printf("The mesh's records and the servers' private folders stay in %s: remove the folder if you don't need them.", s.shownPath(s.paths.Data))
	}
	return nil
}

// removeSecrets removes the secrets to which the remaining configuration does not refer, and returns their number.
func (s *setup) removeSecrets(ctx context.Context, mesh clientsetup.MeshUndone) (n int, err error) {
	err = s.state.RemoveSecrets(ctx, func(ctx context.Context, reference string) error {
		if mesh.Refers(reference) {
			s.printf("%s stays, because %s refers to it.", reference, s.shownPath(s.paths.Config))
			return nil
		}
		n++
		return s.secrets.Delete(ctx, reference)
	})
	if err != nil {
		return n, err
	}
	if err := s.secrets.DeleteKey(ctx, sealKey); err != nil {
		return n, err
	}
	return n, s.secrets.RemoveLeftovers()
}

// removeTokens removes the tokens to which the remaining configuration does not refer.
func (s *setup) removeTokens(mesh clientsetup.MeshUndone) error {
	tokens := filepath.Join(s.paths.Data, "tokens")
	if !mesh.Exists {
		if err := os.RemoveAll(tokens); err != nil {
			return fmt.Errorf("remove the tokens: %w", err)
		}
		return nil
	}
	for _, dir := range []string{tokens, filepath.Join(tokens, "agents")} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the tokens: %w", err)
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if e.IsDir() || mesh.Refers(path) {
				continue
			}
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("remove a token: %w", err)
			}
		}
	}
	return nil
}

// printMeshUndone prints the parts of the mesh that were removed, and the parts that stay.
func (s *setup) printMeshUndone(mesh clientsetup.MeshUndone, policies, changed []string, secrets int) {
	config := s.shownPath(s.paths.Config)
	var removed []string
	if mesh.Deleted {
		removed = append(removed, config)
	}
	for _, path := range policies {
		removed = append(removed, s.shownPath(path))
	}
	if secrets > 0 {
		removed = append(removed, fmt.Sprintf("%d stored secret(s)", secrets))
	}
	s.printf("Removed: %s.", strings.Join(append(removed, "the tokens that nothing else uses"), ", "))
	if len(mesh.Removed) > 0 {
		s.printf("Removed from %s: %s.", config, strings.Join(mesh.Removed, ", "))
	}
	if len(mesh.Restored) > 0 {
		s.printf("Restored in %s: %s.", config, strings.Join(mesh.Restored, ", "))
	}
	for _, kept := range mesh.Kept {
		s.printf("%s: %s, so it stays.", config, kept)
	}
	switch {
	case len(mesh.Hooks) > 0:
		then := ""
		if mesh.Ours {
			then = fmt.Sprintf(", and then %s again", s.command("init --undo"))
		}
		s.printf("%s stays with the token of the operator, because hooks use the mesh: %s. To remove a hook, run %s%s.", config, strings.Join(mesh.Hooks, ", "), s.command("hook remove "+mesh.Hooks[0]), then)
	case mesh.Exists && mesh.Exact:
		s.printf("%s has the content that it had before init, byte for byte.", config)
	case mesh.Exists:
		s.printf("%s stays, because init did not write all of it.", config)
	}
	for _, path := range changed {
		s.printf("%s stays, because it was changed since init wrote it.", s.shownPath(path))
	}
}

// printStillWrapped prints the clients' entries that still go through the mesh to a server that is not in the mesh any
// more. An example is an entry that was renamed after `init` changed it.
func (s *setup) printStillWrapped(mesh clientsetup.MeshUndone) {
	for _, f := range clientsetup.Scan(s.system, clientconfig.Clients(), s.flags.project) {
		for _, e := range f.Entries {
			server := wrappedServer(e)
			if server != "" && slices.Contains(e.Args, "--as") && !slices.Contains(mesh.Servers, server) {
				s.printf("%s: %s still starts the server %s of the mesh, which no longer exists: remove the entry, or write the server's own command.", s.shownPath(f.File.Path), e.Name, server)
			}
		}
	}
}
