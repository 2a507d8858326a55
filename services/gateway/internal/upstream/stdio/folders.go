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
	// agentMark is what stands behind the name of an agent's private folder in the name of the file whose time says when
	// a process of the agent was last seen there. The file lies beside the folder, where no process reaches it.
	agentMark = ".agent"
	// endedFolder stands behind the name of a folder that is being removed.
	endedFolder = ".ended"
	// agentFolderTime is how long an agent's private folder stays that no process uses. An agent that was ended can be
	// brought back for an hour, and one that waits for a person may wait for days.
	agentFolderTime = 30 * 24 * time.Hour
	// sweepInterval is the time between two looks for such folders.
	sweepInterval = time.Hour
)

// touchMark notes that an agent uses its private folder from now on.
func touchMark(dir string, now time.Time) error {
	mark, err := os.OpenFile(dir+agentMark, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(mark.Close(), os.Chtimes(dir+agentMark, now, now))
}

// sweepAlways looks for folders of agents that nothing uses any more, until the transport is closed.
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
		return // no process was started yet
	}
	for _, e := range entries {
		path := filepath.Join(root, e.Name())
		if strings.HasSuffix(path, endedFolder) { // its removal was interrupted, or failed
			s.removeFolder(path)
		}
		dir, isMark := strings.CutSuffix(path, agentMark)
		if !isMark {
			continue
		}
		ended, err := s.putAside(dir, now)
		if err != nil {
			s.log.WarnContext(s.closing, "the private folder of an agent can't be removed; it is tried again", "folder", dir, "error", err)
		}
		if ended != "" {
			s.removeFolder(ended)
		}
	}
}

// putAside renames an agent's private folder that nothing uses any more, and removes its mark, so that a process that is
// started later has a new folder. It returns no name if the folder stays.
func (s *transport) putAside(dir string, now time.Time) (ended string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for who := range s.hosts {
		if folderName(who) == filepath.Base(dir) {
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
		s.log.WarnContext(s.closing, "the private folder of an agent can't be removed; it is tried again", "folder", dir, "error", err)
		return
	}
	s.log.InfoContext(s.closing, "the private folder of an agent was removed, because no process had used it for 30 days", "folder", strings.TrimSuffix(filepath.Base(dir), endedFolder))
}

// isAgent reports whether a principal is an agent of the mesh.
func isAgent(who principal.Key) bool { return strings.HasPrefix(who.Subject, principal.Agent) }
