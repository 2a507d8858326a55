package stdio

import (
	"context"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// maxEndedFolders is the maximum number of private directories that are kept for one person's ended agents on one
	// server. The gateway removes the others.
	maxEndedFolders = 200
	// maxEndedDisk limits the total size of these directories, as a multiple of [Limits.Disk].
	maxEndedDisk = 2
)

type agentFolder struct {
	folderUser

	dir string
	// used is the time at which a process last used the directory.
	used time.Time
}

// folderSize is the size of a directory in bytes. used is the time of the directory's last use before the measurement.
type folderSize struct {
	used  time.Time
	bytes int64
}

// readMark reads the marker file of an agent's private directory. In the result, the user is empty if an earlier
// release wrote the file, or if writing it was interrupted.
func readMark(dir string) (agentFolder, error) {
	f := agentFolder{dir: dir}
	info, err := os.Stat(dir + agentMark)
	if err != nil {
		return f, err
	}
	f.used = info.ModTime()
	raw, err := os.ReadFile(dir + agentMark)
	if err != nil || json.Unmarshal(raw, &f.folderUser) != nil {
		f.folderUser = folderUser{}
	}
	return f, err
}

// limitEnded removes private directories of each person's ended agents until the remaining directories are within the
// limits. It removes the least recently used directories first. Directories of agents that have not ended, or that can
// be restored, are not counted or removed.
func (w *sweeper) limitEnded(now time.Time, unused []agentFolder) {
	byPerson := make(map[principal.Key][]agentFolder)
	for _, f := range unused {
		if f.Person != (principal.Key{}) {
			byPerson[f.Person] = append(byPerson[f.Person], f)
		}
	}
	maps.DeleteFunc(w.sizes, func(dir string, _ folderSize) bool {
		return !slices.ContainsFunc(unused, func(f agentFolder) bool { return f.dir == dir })
	})
	for person, dirs := range byPerson {
		if len(w.excess(dirs)) == 0 {
			continue
		}
		ended, err := w.ended(dirs)
		if err != nil {
			w.log.WarnContext(w.closing, "private folders of ended agents exceed their limit, but it is not known which agents have ended; the gateway tries again in an hour",
				"person", person.Subject, "error", err)
			continue
		}
		for _, f := range w.excess(ended) {
			w.end(f.dir, now, limitReason, func(used time.Time) bool { return used.Equal(f.used) })
		}
	}
}

// excess sorts a person's directories by their last use, and returns the directories that exceed the limits.
func (w *sweeper) excess(dirs []agentFolder) []agentFolder {
	if len(dirs) <= maxEndedDisk { // the total size can't exceed the limit, because no directory is larger than Limits.Disk
		return nil
	}
	slices.SortFunc(dirs, func(a, b agentFolder) int { return b.used.Compare(a.used) })
	var bytes int64
	for i, f := range dirs {
		if bytes += w.size(f); i == maxEndedFolders || bytes > maxEndedDisk*w.cfg.Limits.Disk {
			return dirs[i:]
		}
	}
	return nil
}

// size returns the size of an unused directory. If a directory cannot be measured, size returns the maximum size.
func (w *sweeper) size(f agentFolder) int64 {
	if known, ok := w.sizes[f.dir]; ok && known.used.Equal(f.used) {
		return known.bytes
	}
	bytes, err := measure(f.dir, w.cfg.Limits.Disk)
	if err != nil {
		bytes = w.cfg.Limits.Disk
	}
	w.sizes[f.dir] = folderSize{f.used, bytes}
	return bytes
}

// ended returns the directories of agents that have ended and can't be restored.
func (w *sweeper) ended(dirs []agentFolder) (out []agentFolder, err error) {
	ctx, cancel := context.WithTimeout(w.closing, time.Minute)
	defer cancel()
	alive := make(map[string]map[string]bool)
	for _, f := range dirs {
		tenant := f.Agent.Tenant
		if alive[tenant] == nil {
			if alive[tenant], err = w.agents(ctx, tenant); err != nil {
				return nil, err
			}
		}
		if !alive[tenant][f.Agent.Subject] {
			out = append(out, f)
		}
	}
	return out, nil
}
