package policy

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

const (
	// rescanInterval is how often the documents are read. Changes are detected by comparing the content, so that all
	// kinds of changes are found, such as overwritten files, atomic renames, and changed links in a Kubernetes
	// ConfigMap.
	rescanInterval = 500 * time.Millisecond
	// maxRejected limits how many findings are stored about documents that can't be used, because each watcher receives
	// the findings with every heartbeat.
	maxRejected = 100
)

// fingerprint identifies the documents that were read, or the error that occurred meanwhile.
type fingerprint [sha256.Size]byte

// watch reads the documents at regular intervals and activates them when they change, until ctx is cancelled. If the
// new documents can't be used, the old set stays active. A change counts only if two consecutive scans have read the
// same documents. Otherwise a partly written file, or a mix of old and new files, could become a policy that the
// operator did not write.
//
// If the policies are in the store, watch reads only the holders of the configuration's tokens.
func (s *Service) watch(ctx context.Context) error {
	tick := time.NewTicker(rescanInterval)
	defer tick.Stop()
	for _, w := range s.cfg.ObserveWarnings {
		s.deps.Log.WarnContext(ctx, "the configuration observes servers", "warning", w)
	}
	s.warn(ctx)
	s.warnOfLists(ctx)
	if s.cfg.Stored {
		return s.watchPeople(ctx, tick.C)
	}
	done := fingerprintOf(s.active.Load().documents, nil)
	var people peopleScan
	renewed := false // true if the approvers have changed since the documents were checked
	for last := done; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		renewed = s.rescan(ctx, &people) || renewed
		documents, err := read(s.cfg.Paths)
		now := fingerprintOf(documents, err)
		if now == last && (now != done || renewed) {
			s.replace(ctx, documents, err)
			if s.active.Load().rejected == nil {
				s.warnOfLists(ctx)
			}
			done, renewed = now, false
		}
		last = now
	}
}

// fingerprintOf returns the fingerprint of documents, including their paths, or of the error that occurred when they
// were read.
func fingerprintOf(documents []*policyv1.Document, err error) fingerprint {
	h := sha256.New()
	for _, d := range documents {
		fmt.Fprintf(h, "%d:%s%d:%s", len(d.GetPath()), d.GetPath(), len(d.GetText()), d.GetText())
	}
	if err != nil {
		fmt.Fprintf(h, "error: %v", err)
	}
	return fingerprint(h.Sum(nil))
}

// replace activates documents, or records why they can't be used. err is the error that occurred when the documents
// were read, or nil.
func (s *Service) replace(ctx context.Context, documents []*policyv1.Document, err error) {
	var set *engine.Set
	var warnings strictyaml.Errors
	if err == nil { // compile without the lock, because the tests in documents may take long, and stops must not wait for them
		set, warnings, err = s.cfg.compile(ctx, documents, s.people())
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	old := s.active.Load()
	next := &activeSet{Set: old.Set, number: old.number + 1, catalog: old.catalog, stopsVersion: old.stopsVersion, revision: old.revision, documents: documents, activated: old.activated, warnings: warnings}
	if err == nil {
		next.Set = set.WithStops(old.Stops())
		next.revision = revisionOf(next.Set, next.catalog)
	}
	switch {
	case err != nil:
		problems := findings(err)
		unchanged := *old
		unchanged.number++
		unchanged.rejected = problems[:min(len(problems), maxRejected)]
		next = &unchanged
		s.deps.Log.ErrorContext(ctx, "policies do not load; the old revision stays", "revision", old.Revision(), "error", err)
	case next.Revision() != old.Revision():
		next.activated = later(time.Now(), old.activated)
		s.deps.Log.InfoContext(ctx, "policies changed", "revision", next.Revision(), "before", old.Revision())
	case old.rejected != nil:
		s.deps.Log.InfoContext(ctx, "policies load again", "revision", old.Revision())
	}
	s.active.Store(next)
	if err == nil {
		s.warn(ctx)
	}
	s.changes.Notify()
}

func (s *Service) warn(ctx context.Context) {
	for _, w := range s.active.Load().warnings {
		s.deps.Log.WarnContext(ctx, "a policy may not do what its author meant", "warning", w.Error())
	}
}

// later returns now if it is later than the time of the previous activation. Otherwise, for example because the clock
// was set back, it returns the time 1 ns after the previous activation, so that the times of activations always
// increase.
func later(now, before time.Time) time.Time {
	if now.UnixNano() > before.UnixNano() {
		return now
	}
	return before.Add(1)
}
