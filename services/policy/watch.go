package policy

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// rescan is how often the documents are read again. They are compared by
// content, so that an atomic rename and the links of a Kubernetes ConfigMap are
// seen as surely as a write in place.
const rescan = 500 * time.Millisecond

// Run follows changes of the documents until ctx ends. A set that does not load
// leaves the old one serving.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(rescan)
	defer tick.Stop()
	var seen [sha256.Size]byte
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			seen = s.refresh(ctx, seen)
		}
	}
}

// refresh reads the documents and, where their text is not what was seen before,
// puts them in place of the active ones if they load. It returns what it saw.
func (s *Service) refresh(ctx context.Context, seen [sha256.Size]byte) [sha256.Size]byte {
	documents, err := read(s.cfg.Paths)
	if err != nil {
		s.reject(ctx, err.Error())
		return [sha256.Size]byte{}
	}
	now := digest(documents)
	if now == seen {
		return now
	}
	set, err := compile(documents, s.cfg.SessionCap)
	if err != nil {
		s.reject(ctx, err.Error())
		return now
	}
	s.activate(ctx, set)
	return now
}

// digest identifies documents by name and text.
func digest(documents []*policyv1.Document) [sha256.Size]byte {
	h := sha256.New()
	for _, d := range documents {
		fmt.Fprintf(h, "%d:%s%d:%s", len(d.GetPath()), d.GetPath(), len(d.GetText()), d.GetText())
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func (s *Service) activate(ctx context.Context, set *engine.Set) {
	old := s.active.Load()
	mended := s.rejected.Swap(nil) != nil
	switch {
	case set.Revision() != old.Revision():
		s.active.Store(&activeSet{Set: set, activated: time.Now()})
		s.deps.Log.InfoContext(ctx, "policies changed", "revision", set.Revision(), "before", old.Revision())
	case mended:
		s.deps.Log.InfoContext(ctx, "policies load again", "revision", set.Revision())
	default:
		return
	}
	s.changes.notify()
}

// reject says once why new documents don't replace the active ones.
func (s *Service) reject(ctx context.Context, why string) {
	if old := s.rejected.Load(); old != nil && *old == why {
		return
	}
	s.rejected.Store(&why)
	s.deps.Log.ErrorContext(ctx, "policies do not load; the old revision stays", "revision", s.active.Load().Revision(), "error", why)
	s.changes.notify()
}

// activation is the token by which a caller can demand this revision.
func (a *activeSet) activation() string {
	return strconv.FormatInt(a.activated.UnixNano(), 36) + "-" + a.Revision()[:16]
}

// Get implements policyv1.PolicyServiceServer for the active revision: of those
// that come from files no other is kept.
func (s *Service) Get(_ context.Context, req *policyv1.GetRequest) (*policyv1.GetResponse, error) {
	rev := s.revision()
	if rev == nil {
		return nil, toStatus(errNoPolicy)
	}
	if req.GetRevision() != "" && req.GetRevision() != rev.GetId() {
		return nil, toStatus(errNoRevision)
	}
	documents, err := read(s.cfg.Paths)
	if err != nil {
		return nil, toStatus(err)
	}
	return &policyv1.GetResponse{Revision: rev, Documents: documents}, nil
}

// Watch implements policyv1.PolicyServiceServer.
func (s *Service) Watch(_ *policyv1.WatchRequest, stream grpc.ServerStreamingServer[policyv1.WatchResponse]) error {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		changed := s.changes.wait()
		if err := stream.Send(&policyv1.WatchResponse{Revision: s.revision()}); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-changed:
		case <-tick.C:
		}
	}
}

// revision describes the active revision; nil where none is.
func (s *Service) revision() *policyv1.Revision {
	set := s.active.Load()
	if set == nil {
		return nil
	}
	rev := &policyv1.Revision{
		Id: set.Revision(), Activated: timestamppb.New(set.activated), Activation: set.activation(), Active: true,
	}
	if why := s.rejected.Load(); why != nil {
		rev.Rejected = []*policyv1.Finding{{Severity: policyv1.Severity_SEVERITY_ERROR, Message: *why, Check: "load"}}
	}
	return rev
}

// signal tells any number of waiters that something has changed. It is safe for
// concurrent use.
type signal struct {
	mu sync.Mutex
	ch chan struct{}
}

func newSignal() *signal { return &signal{ch: make(chan struct{})} }

// wait returns a channel that is closed at the next change.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ch
}

func (s *signal) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ch)
	s.ch = make(chan struct{})
}
