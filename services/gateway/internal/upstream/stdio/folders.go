package stdio

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/datadir"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// agentMark is the suffix of a marker file next to an agent's private directory. The file's modification time is
	// the time at which one of the agent's processes last used the directory. The file contains a [folderUser]. No
	// process can change the file.
	agentMark = ".agent"
	// endedFolder is the suffix of a directory that is being removed.
	endedFolder = ".ended"
	// agentFolderTime is the time without use after which an agent's private directory is removed. This time is long
	// because an agent that has ended can be restored for an hour, and because an agent may wait for an approver for days.
	agentFolderTime = 30 * 24 * time.Hour
	sweepInterval   = time.Hour
)

// These are the reasons why an agent's directory is removed.
const (
	unusedReason = "no process had used it for 30 days"
	limitReason  = "the folders of this person's ended agents exceeded their limit"
)

// folderUser identifies the user of an agent's private directory.
type folderUser struct {
	// Agent is the agent, and Person is the person that the agent works for.
	Agent, Person principal.Key
}

// touchMark records that an agent uses its private directory now.
func touchMark(dir string, user folderUser, now time.Time) error {
	raw, err := json.Marshal(user)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(dir+agentMark, raw, 0o600), os.Chtimes(dir+agentMark, now, now))
}

// sweeper removes agents' unused directories. Only one goroutine may use a sweeper.
type sweeper struct {
	*transport

	// sizes contains the sizes of unused directories by path.
	sizes map[string]folderSize
}

// sweepAlways repeatedly removes agents' unused directories until the transport is closed.
func (s *transport) sweepAlways() {
	w := &sweeper{s, make(map[string]folderSize)}
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		w.sweep(time.Now())
		select {
		case <-s.closing.Done():
			return
		case <-tick.C:
		}
	}
}

// sweep removes the private directories of agents that no process has used for [agentFolderTime]. It then removes the
// directories that exceed the limits for a person's ended agents.
func (w *sweeper) sweep(now time.Time) {
	root := filepath.Join(w.cfg.WorkRoot, w.cfg.Name)
	entries, err := os.ReadDir(root)
	if err != nil {
		return // no process has used a private directory yet
	}
	var unused []agentFolder
	for _, e := range entries {
		path := filepath.Join(root, e.Name())
		if strings.HasSuffix(path, endedFolder) { // the removal was interrupted or has failed
			w.removeFolder(path, "an earlier removal was interrupted")
		}
		dir, isMark := strings.CutSuffix(path, agentMark)
		if !isMark || w.end(dir, now, unusedReason, func(used time.Time) bool { return now.Sub(used) >= agentFolderTime }) {
			continue
		}
		if folder, err := readMark(dir); err == nil {
			unused = append(unused, folder)
		}
	}
	w.limitEnded(now, unused)
}

// end removes an agent's private directory if no process uses it and isOld returns true. isOld receives the time at
// which the directory was last used. end reports whether it has started to remove the directory.
func (w *sweeper) end(dir string, now time.Time, reason string, isOld func(used time.Time) bool) bool {
	ended, err := w.renameUnused(dir, now, isOld)
	if err != nil {
		w.log.WarnContext(w.closing, "the private folder of an agent can't be removed; the gateway tries again", "folder", dir, "error", err)
	}
	if ended != "" {
		w.removeFolder(ended, reason)
	}
	return ended != ""
}

// renameUnused renames an agent's private directory if the directory is unused and isOld returns true. It also removes
// the directory's marker file. A process that starts later gets a new directory. renameUnused returns the new name, or
// "" if the directory was not renamed.
func (s *transport) renameUnused(dir string, now time.Time, isOld func(used time.Time) bool) (ended string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, h := range s.hosts {
		if folderName(key) == filepath.Base(dir) {
			return "", touchMark(dir, h.folderUser(), now)
		}
	}
	mark, err := os.Stat(dir + agentMark)
	if err != nil || !isOld(mark.ModTime()) {
		return "", err
	}
	if err := os.Rename(dir, dir+endedFolder); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	_ = os.Remove(dir + homeMark) // most directories have no such file
	return dir + endedFolder, os.Remove(dir + agentMark)
}

// removeFolder removes a directory that no process uses.
func (s *transport) removeFolder(dir, reason string) {
	if err := datadir.RemoveAll(dir); err != nil {
		s.log.WarnContext(s.closing, "the private folder of an agent can't be removed; the gateway tries again", "folder", dir, "error", err)
		return
	}
	s.log.InfoContext(s.closing, "the private folder of an agent was removed", "reason", reason, "folder", strings.TrimSuffix(filepath.Base(dir), endedFolder))
}

func (h *host) folderUser() folderUser { return folderUser{Agent: h.key, Person: h.accounts.Root()} }

func isAgent(key principal.Key) bool { return strings.HasPrefix(key.Subject, principal.Agent) }
