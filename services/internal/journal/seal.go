package journal

import (
	"context"
	"path/filepath"
	"time"
)

const (
	// sealInterval is the interval at which a head is signed if records have been written since the last head.
	sealInterval = time.Second
	// headLogInterval is the interval at which the newest head is logged.
	headLogInterval = time.Hour
)

// Head returns the newest signed head, or nil if there is none yet. The caller must not modify it.
func (j *Journal) Head() *Head { return j.head.Load() }

// seal signs the ends of both chains and stores the head in the directory. It does nothing if the chains have not grown
// since the last head. Only [Open], [Journal.Close] and the maintain goroutine call it.
func (j *Journal) seal() {
	h := &Head{Time: time.Now().UTC(), Calls: j.calls.end(), Refusals: j.refusals.end()}
	if old := j.head.Load(); old != nil && old.Calls == h.Calls && old.Refusals == h.Refusals {
		return
	}
	h.seal(j.keys.seal)
	err := replaceFile(filepath.Join(j.cfg.Dir, headName), []byte(h.String()+"\n"), j.cfg.Sync == SyncAlways)
	if (err == nil) == j.sealFailed {
		j.sealFailed = err != nil
		if err != nil {
			j.cfg.Log.ErrorContext(context.Background(), "journal's head can't be stored: if records were cut off now, that would not be detected", "error", err)
		} else {
			j.cfg.Log.InfoContext(context.Background(), "journal's head can be stored again")
		}
	}
	if err == nil {
		j.head.Store(h)
	}
}

// logHead logs the newest head. A copy of the log on another machine can later show that records were removed from the
// end.
func (j *Journal) logHead() {
	if h := j.head.Load(); h != nil {
		j.cfg.Log.InfoContext(context.Background(), "journal's head", "head", h.String())
	}
}
