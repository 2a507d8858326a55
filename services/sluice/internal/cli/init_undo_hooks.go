package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/hooksetup"
)

// undoHooks prints the hooks of the clients whose files undo restores. If the person agrees, it removes these hooks,
// because they would deny all calls without a mesh. It reports whether there are such hooks.
func (s *setup) undoHooks(ctx context.Context) (found bool, err error) {
	hooks, err := s.installedHooks()
	if err != nil || len(hooks) == 0 {
		return false, err
	}
	if err := s.checkMesh(); err != nil {
		return true, err
	}
	var names []string
	for _, h := range hooks {
		names = append(names, h.client.Name)
		s.printf("%s has the hook of Sluice in %s. Without your mesh, the hook denies all calls.", h.client.Name, s.shownPath(h.Path))
	}
	if err := s.confirm(ctx, s.flags.yes, "Remove the hook of "+strings.Join(names, ", ")+"?"); err != nil {
		if ctx.Err() != nil {
			return true, errors.New("nothing was changed")
		}
		s.printf("The hooks stay, and what they need of your mesh stays with them.")
		return true, nil // undo continues without the hooks
	}
	for _, h := range hooks {
		if err := h.remove(ctx); err != nil {
			return true, fmt.Errorf("remove the hook of %s: %w", h.client.Name, err)
		}
	}
	return true, nil
}

// installedHooks returns the hooks that `hook install` has registered for the clients of this run.
func (s *setup) installedHooks() ([]*hookTarget, error) {
	records, err := hooksetup.ReadRecords(s.paths.Data)
	if err != nil {
		return nil, err
	}
	var out []*hookTarget
	for _, record := range records {
		if !slices.ContainsFunc(s.clients, func(c clientconfig.Client) bool { return c.ID == record.Client }) {
			continue
		}
		h, err := s.hookTarget(record.Client, record.Project)
		if err != nil {
			return nil, err
		}
		out = append(out, h)
	}
	return out, nil
}
