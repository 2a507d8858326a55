package journal

import (
	"context"
	"path/filepath"
	"time"
)

const (
	// sealEvery is how often a head is sealed where something was written.
	sealEvery = time.Second
	// tellEvery is how often the log says it.
	tellEvery = time.Hour
)

// Head returns the newest head that was sealed; nil before the first. It is only to be
// read.
func (j *Journal) Head() *Head { return j.head.Load() }

// seal signs how far both chains go and keeps it in the folder, if they went on since
// it did so last. Only the keeper and who opens or closes the journal call it.
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

// tellHead writes the newest head to the log, from where a copy gets to another
// machine.
func (j *Journal) tellHead() {
	if h := j.head.Load(); h != nil {
		j.cfg.Log.InfoContext(context.Background(), "journal's head", "head", h.String())
	}
}
