package policy

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

const (
	// maxDiffTime limits the duration of a DiffRevisions or DiffCatalog request, including the time in which the request
	// waits for other requests. After that, the service has maxSendTime to send the results that it has found.
	maxDiffTime, maxSendTime = 50 * time.Second, 10 * time.Second
	// maxDiffs limits the number of DiffRevisions and DiffCatalog requests that are processed at the same time. Each
	// person can have only one.
	maxDiffs = 4
)

var errDiffEnded = errors.New("the comparison waited too long for others, or its flips were read too slowly: try again, or compare a smaller change")

// beginDiff waits until the caller may begin a comparison. The caller must use the returned context for the comparison,
// and must call the returned function after it.
func (s *Service) beginDiff(ctx context.Context) (limited context.Context, end func(), err error) {
	limited, cancel := context.WithTimeoutCause(ctx, maxDiffTime, errDiffEnded)
	done, err := s.diffSlots.Acquire(limited, callerOwner(ctx))
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return limited, func() { done(); cancel() }, nil
}

// limitSends returns a sender that fails if it is called more than [maxSendTime] after the deadline of ctx. Without
// this limit, a slow client would delay the comparisons of other people.
func limitSends(ctx context.Context, send flipSender) flipSender {
	return func(flips []*policyv1.Flip, totals *policyv1.DiffTotals) error {
		if deadline, ok := ctx.Deadline(); ok && time.Since(deadline) > maxSendTime {
			return errDiffEnded
		}
		return send(flips, totals)
	}
}

// DiffRevisions implements policyv1.PolicyServiceServer.
func (s *Service) DiffRevisions(req *policyv1.DiffRevisionsRequest, stream grpc.ServerStreamingServer[policyv1.DiffRevisionsResponse]) error {
	ctx := stream.Context()
	if !mayReadDocuments(authn.CallerOf(ctx)) {
		return toStatus(errOtherTenant)
	}
	limited, end, err := s.beginDiff(ctx)
	if err != nil {
		return toStatus(err)
	}
	defer end()
	set, err := s.current(ctx)
	switch {
	case err != nil:
		return toStatus(err)
	case set == nil:
		return toStatus(errNoPolicy)
	}
	before, after, err := s.comparedDocuments(ctx, set, req)
	if err != nil {
		return toStatus(err)
	}
	d := s.newDocumentsDiffer(set, maxDiffWork)
	d.recorded = req.GetRecorded()
	err = d.diff(limited, before, after, limitSends(limited, func(flips []*policyv1.Flip, totals *policyv1.DiffTotals) error {
		return stream.Send(&policyv1.DiffRevisionsResponse{Flips: flips, Totals: totals})
	}))
	if err != nil {
		return toStatus(err)
	}
	return ctx.Err()
}

// newDocumentsDiffer returns a documentsDiffer that uses the catalog in the given set.
func (s *Service) newDocumentsDiffer(set *activeSet, maxWork time.Duration) *documentsDiffer {
	cfg := s.cfg
	cfg.People = *s.holders.Load()
	return &documentsDiffer{differ: differ{cfg: cfg, clock: s.newDiffClock(maxWork)}, servers: set.catalog.servers, settings: s.settings}
}

// newDiffClock returns a clock for a comparison by the caller. Each of its time slices uses one of lintSlots.
func (s *Service) newDiffClock(maxWork time.Duration) diffClock {
	return diffClock{limit: maxWork, slice: func(ctx context.Context) (func(), error) { return s.lintSlots.Acquire(ctx, callerOwner(ctx)) }}
}

// comparedDocuments returns the two versions of the documents that a request compares.
func (s *Service) comparedDocuments(ctx context.Context, set *activeSet, req *policyv1.DiffRevisionsRequest) (before, after []*policyv1.Document, err error) {
	before, after = req.GetOldDocuments(), req.GetDocuments()
	switch {
	case (len(after) == 0) == (req.GetNewRevision() == ""):
		return nil, nil, errDocumentsRequired
	case req.GetOldRevision() != "" && len(before) > 0:
		return nil, nil, errNoRevision
	}
	if req.GetOldRevision() != "" {
		found, err := s.findRevision(ctx, req.GetOldRevision())
		if err != nil {
			return nil, nil, err
		}
		before = found.documents
	} else if len(before) == 0 {
		before = set.documents
	}
	if req.GetNewRevision() != "" {
		found, err := s.findRevision(ctx, req.GetNewRevision())
		if err != nil {
			return nil, nil, err
		}
		after = found.documents
	}
	return before, after, nil
}

// Diff compares the decisions that two versions of documents make. It returns the totals and all flips, which are the
// calls whose result changes. The configuration f belongs to a mesh whose data directory contains the catalog. If f is
// nil, or if the mesh has never run, Diff compares only calls that the documents mention. If the catalog can't be read,
// Diff returns an error. If ctx is done, or if the comparison takes more than a minute, the totals say that the
// comparison ended early.
func Diff(ctx context.Context, f *config.File, env config.Env, before, after []*policyv1.Document) (*policyv1.DiffRevisionsResponse, error) {
	d, err := offlineDiffer(ctx, f, env)
	if err != nil {
		return nil, err
	}
	out := new(policyv1.DiffRevisionsResponse)
	err = d.diff(ctx, before, after, func(flips []*policyv1.Flip, totals *policyv1.DiffTotals) error {
		out.Flips, out.Totals = append(out.Flips, flips...), totals
		return nil
	})
	SortFlips(out.GetFlips())
	return out, err
}

// offlineDiffer returns a documentsDiffer for a configuration. If f is nil, the documentsDiffer has no configuration.
func offlineDiffer(ctx context.Context, f *config.File, env config.Env) (*documentsDiffer, error) {
	d := new(documentsDiffer)
	d.clock = diffClock{limit: maxOfflineWork, slice: func(context.Context) (func(), error) { return func() {}, nil }}
	d.settings = func(server string) catalog.Settings { return d.cfg.Servers[server] }
	if f == nil {
		d.cfg = baseConfig(new(config.Default()))
		return d, nil
	}
	d.cfg = baseConfig(f)
	d.cfg.Servers = make(map[string]catalog.Settings, len(f.Servers))
	for name, server := range f.Servers {
		d.cfg.Servers[name] = catalog.Settings{Trusted: server.Trusted}
	}
	for _, t := range f.Auth.Tokens {
		d.cfg.Tokens = append(d.cfg.Tokens, f.TokenMessage(t))
	}
	source, err := f.Stores.Policy.Resolve(f, env)
	switch {
	case err != nil:
		return nil, err
	case source != sqlstore.SQLite:
		return nil, errors.New("the catalog is in PostgreSQL: add --live, so that the running mesh compares the documents")
	}
	file := filepath.Join(f.Path(f.Data), "policy", "catalogue.db")
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		if d.servers, err = store.Servers(ctx, file); err != nil {
			return nil, err
		}
	}
	return d, nil
}
