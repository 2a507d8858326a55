package stdio

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/datadir"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// agentMark is the suffix of a file next to an agent's private folder. The modification time of the file records when
	// a process of the agent last used the folder. No process can change the file there.
	agentMark = ".agent"
	// endedFolder is the suffix of a folder that is being removed.
	endedFolder = ".ended"
	// agentFolderTime is how long an unused private folder of an agent is kept. It must be long, because an ended agent
	// can be restored for an hour, and an agent may wait for an approver for days.
	agentFolderTime = 30 * 24 * time.Hour
	// sweepInterval is the time between two searches for unused folders.
	sweepInterval = time.Hour
)

// touchMark records that an agent uses its private folder now.
func touchMark(dir string, now time.Time) error {
	mark, err := os.OpenFile(dir+agentMark, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(mark.Close(), os.Chtimes(dir+agentMark, now, now))
}

// sweepAlways removes unused folders of agents until the transport is closed.
func (s *transport) sweepAlways() {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		s.sweep(time.Now())
		select {
		case <-s.closing.Done():
			return
		case <-tick.C:
		}
	}
}

// sweep removes the private folders of agents that no process has used for [agentFolderTime].
func (s *transport) sweep(now time.Time) {
	root := filepath.Join(s.cfg.WorkRoot, s.cfg.Name)
	entries, err := os.ReadDir(root)
	if err != nil {
		return // no process has been started yet
	}
	for _, e := range entries {
		path := filepath.Join(root, e.Name())
		if strings.HasSuffix(path, endedFolder) { // the removal was interrupted or has failed
			s.removeFolder(path)
		}
		dir, isMark := strings.CutSuffix(path, agentMark)
		if !isMark {
			continue
		}
		ended, err := s.renameUnused(dir, now)
		if err != nil {
			s.log.WarnContext(s.closing, "the private folder of an agent can't be removed; the gateway tries again", "folder", dir, "error", err)
		}
		if ended != "" {
			s.removeFolder(ended)
		}
	}
}

// renameUnused renames an agent's private folder if it is unused, and removes its mark, so that a process that starts
// later gets a new folder. It returns the new name, or "" if the folder is in use.
func (s *transport) renameUnused(dir string, now time.Time) (ended string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.hosts {
		if folderName(key) == filepath.Base(dir) {
			return "", touchMark(dir, now)
		}
	}
	mark, err := os.Stat(dir + agentMark)
	if err != nil || now.Sub(mark.ModTime()) < agentFolderTime {
		return "", err
	}
	if err := os.Rename(dir, dir+endedFolder); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return dir + endedFolder, os.Remove(dir + agentMark)
}

// removeFolder removes a folder that no process uses.
func (s *transport) removeFolder(dir string) {
	if err := datadir.RemoveAll(dir); err != nil {
		s.log.WarnContext(s.closing, "the private folder of an agent can't be removed; the gateway tries again", "folder", dir, "error", err)
		return
	}
	s.log.InfoContext(s.closing, "the private folder of an agent was removed, because no process had used it for 30 days", "folder", strings.TrimSuffix(filepath.Base(dir), endedFolder))
}

func isAgent(key principal.Key) bool { return strings.HasPrefix(key.Subject, principal.Agent) }
