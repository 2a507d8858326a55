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
	// rescanInterval is the interval at which the documents are read. Changes are detected by comparing the content. This
	// detects all kinds of changes, such as overwritten files, atomic renames, and changed links in a Kubernetes
	// ConfigMap.
	rescanInterval = 500 * time.Millisecond
	// maxRejected limits the number of findings that are kept about documents that can't be used. Each watcher receives
	// these findings with every heartbeat.
	maxRejected = 100
)

// fingerprint identifies the documents that were read, or the error from reading them.
type fingerprint [sha256.Size]byte

// watch reads the documents at regular intervals until ctx is cancelled, and activates them when they change. If the
// new documents can't be used, the old set stays active. A change counts only if two consecutive scans have read the
// same documents. Otherwise a partly written file, or a mix of old and new files, could become a policy that the
// operator did not write.
//
// If the policies are in the store, watch reads only the tokens in the configuration.
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

// fingerprintOf returns the fingerprint of documents and their paths, or of the error from reading the documents.
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

// replace activates documents, or records why they can't be used. err is the error from reading the documents, or nil.
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

// later returns the time now if it is later than the time previous, which is the time of the previous activation.
// Otherwise, for example because the clock was set back, it returns the time 1 ns after previous. Therefore activation
// times always increase.
func later(now, previous time.Time) time.Time {
	if now.UnixNano() > previous.UnixNano() {
		return now
	}
	return previous.Add(1)
}
