package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
	"github.com/sluice-mesh/sluice/services/sluice/internal/running"
)

// agree shows the changes that `hook install` will make, and asks the person for confirmation. It does not ask if there
// are no changes.
func (h *hookTarget) agree(ctx context.Context) error {
	settings, newSettings, err := h.Preview(h.paths.Data, h.programPath())
	if err != nil {
		return err
	}
	config, newConfig, err := h.configuration(true)
	if err != nil {
		return err
	}
	_, err = os.Stat(h.policyPath())
	hasPolicy := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the policy: %w", err)
	}
	restarts := !hasPolicy || !bytes.Equal(config, newConfig)
	if !restarts && bytes.Equal(settings, newSettings) {
		return nil
	}
	h.printPreview([2][]byte{settings, newSettings}, [2][]byte{config, newConfig})
	if !hasPolicy {
		h.printf("New file: %s, the policy for the tools of %s", h.shownPath(h.policyPath()), h.client.Name)
	}
	if _, found, err := running.Find(h.paths.Data); err == nil && found && restarts {
		h.printf("Your mesh starts again. Calls that run now may fail.")
	}
	if err := h.confirm(ctx, h.flags.yes, "Write these changes?"); err != nil {
		return errors.New("nothing was changed: agree at a terminal, or add --yes to agree in advance")
	}
	return nil
}

// printPreview prints the changes to the client's settings and to the mesh's configuration. Each array contains the
// content before and after the change.
func (h *hookTarget) printPreview(settings, config [2][]byte) {
	hide := hideSecretsIn(map[configedit.Format][]byte{configedit.JSON: settings[0], configedit.YAML: config[0]})
	if !bytes.Equal(settings[0], settings[1]) {
		h.printFileDiff(h.shownPath(h.Path), "new", hide, settings[0], settings[1])
	}
	if !bytes.Equal(config[0], config[1]) {
		h.printFileDiff(h.shownPath(h.paths.Config), "new", hide, config[0], config[1])
	}
}
