package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
)

// managed prints a settings file with which an administrator can restrict a client to servers behind the mesh. It
// prints the file on standard output, and instructions on standard error.
func (s *setup) managed() error {
	if len(s.clients) != 1 {
		return usageError{fmt.Errorf("--managed needs one client: name one of %s", strings.Join(clientconfig.ManagedClients(), ", "))}
	}
	client := s.clients[0]
	var entries []clientconfig.Entry
	for _, f := range s.scan("") { // project files are omitted, because they come with repositories
		entries = append(entries, f.Entries...)
	}
	file, err := client.Managed(runtime.GOOS, s.programPath(), entries)
	if err != nil {
		return err
	}
	if _, err := s.out.Write(file.Content); err != nil {
		return errors.Join(err, errSilent)
	}
	note := func(format string, args ...any) { _ = oneLine(s.errOut, format, args...) }
	note("An administrator puts this into %s, for example with:", file.Path)
	note("  %s init --managed %s | sudo install -D -m 0644 /dev/stdin %s", s.self, client.ID, shellWords(file.Path))
	note("Then %s uses no other MCP servers, whatever is in the user's files. Users who have not run init have no token, and their calls are refused.", client.Name)
	if file.Limits != "" {
		note("%s", file.Limits)
	}
	if strings.HasPrefix(s.programPath(), s.system.Home+string(filepath.Separator)) {
		note("An agent that runs as you can replace %s: install the program where only administrators write, and run init again from there.", s.shownPath(s.programPath()))
	}
	return nil
}
