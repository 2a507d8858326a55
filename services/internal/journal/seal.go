package journal

import (
	"context"
	"path/filepath"
	"time"
)

const (
	// sealEvery is the interval at which a head is sealed if something was written.
	sealEvery = time.Second
	// tellEvery is the interval at which the head is logged.
	tellEvery = time.Hour
)

// Head returns the newest sealed head; nil before the first. The caller must not change it.
func (j *Journal) Head() *Head { return j.head.Load() }

// seal signs the ends of both chains and stores the head in the folder, if the chains have grown since the last head.
// Only the keeper, [Open] and [Journal.Close] call it.
func (j *Journal) seal() {
	h := &Head{Time: time.Now().UTC(), Calls: j.calls.end(), Refusals: j.refusals.end()}
	if old := j.head.Load(); old != nil && old.Calls == h.Calls && old.Refusals == h.Refusals {
		return
	}
	h.seal(j.keys.seal)
	err := replaceFile(filepath.Join(j.cfg.Dir, headName), []byte(h.String()+"\n"), j.cfg.Sync == SyncAlways)
	if (err == nil) == j.unsealed {
		j.unsealed = err != nil
		if err != nil {
			j.cfg.Log.ErrorContext(context.Background(), "journal's head is not sealed: records that are cut off now would not be missed", "error", err)
		} else {
			j.cfg.Log.InfoContext(context.Background(), "journal's head is sealed again")
		}
	}
	if err == nil {
		j.head.Store(h)
	}
}

// tellHead logs the newest head, because logs are usually copied to another machine.
func (j *Journal) tellHead() {
	if h := j.head.Load(); h != nil {
		j.cfg.Log.InfoContext(context.Background(), "journal's head", "head", h.String())
	}
}
