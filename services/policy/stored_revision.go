package policy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

// maxRevisionRead limits how long it may take to read a revision and compile its documents.
const maxRevisionRead = 5 * time.Second

// errNotLoaded means that the store has a newer revision than the active one, and that this revision could not be read.
var errNotLoaded = errors.New("a newer policy revision could not be read from the store, so calls are refused until it can be")

// errDamaged means that stored documents are not the documents that were applied.
var errDamaged = errors.New("the documents of this policy revision in the store are damaged: apply documents again")

// documentsID returns the id of documents, which is the SHA-256 digest of their paths and texts in hexadecimal. The
// documents must be sorted by path.
func documentsID(documents []*policyv1.Document) string {
	h := sha256.New()
	fmt.Fprintf(h, "sluice.documents.v1 %d ", len(documents))
	for _, d := range documents {
		fmt.Fprintf(h, "%d:%s%d:%s", len(d.GetPath()), d.GetPath(), len(d.GetText()), d.GetText())
	}
	return hex.EncodeToString(h.Sum(nil))
}

// sortDocuments sorts documents by path.
func sortDocuments(documents []*policyv1.Document) []*policyv1.Document {
	return slices.SortedStableFunc(slices.Values(documents), func(a, b *policyv1.Document) int {
		return strings.Compare(a.GetPath(), b.GetPath())
	})
}

// packDocuments encodes documents for the store.
func packDocuments(documents []*policyv1.Document) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(&policyv1.GetRevisionResponse{Documents: documents})
}

// storedDocuments reads the documents with the given id from the store. It returns an error if the documents do not
// match the id.
func (s *Service) storedDocuments(ctx context.Context, id string) ([]*policyv1.Document, error) {
	raw, err := s.store.DocumentsOf(ctx, id)
	if err != nil {
		return nil, err
	}
	var out policyv1.GetRevisionResponse
	if err := proto.Unmarshal(raw, &out); err != nil || documentsID(out.GetDocuments()) != id {
		return nil, fmt.Errorf("%s: %w", id, errDamaged)
	}
	return out.GetDocuments(), nil
}

type compiledDocuments struct {
	set       *engine.Set
	documents []*policyv1.Document
	warnings  strictyaml.Errors
	// rejected says why stored documents can't be used. If it is not empty, set denies every call.
	rejected []*policyv1.Finding
}

// refuseAll returns a set that denies every call with the given reason. This includes calls to servers in observe mode,
// because there is no policy whose decisions could be recorded.
func (s *Service) refuseAll(reason string) (*compiledDocuments, error) {
	document := &policyv1.Document{Path: "no-policy.yaml", Text: fmt.Sprintf(`version: 1
name: no-policy
default: deny
rules:
  - {name: no-policy, match: {method: "*"}, action: deny, reason: %q}
`, reason)}
	cfg := s.cfg
	cfg.Observe = engine.Observe{}
	_, set, err := cfg.load([]*policyv1.Document{document}, nil)
	if err != nil {
		return nil, fmt.Errorf("refuse every call: %w", err)
	}
	return &compiledDocuments{set: set, documents: []*policyv1.Document{document}}, nil
}

// compileStored reads the documents of a revision from the store and compiles them. It does not run their tests,
// because the tests passed when the documents were applied. It does not check who can approve calls, because tokens may
// have changed since then. If there is no revision, or if its documents can't be used, the result denies every call.
// compileStored returns an error only if the store can't be read.
func (s *Service) compileStored(ctx context.Context, rev *store.Revision) (*compiledDocuments, error) {
	if rev.Number == 0 {
		return s.refuseAll("no policy has been applied yet, so every call is refused: an operator applies one with sluice policy apply")
	}
	documents, err := s.storedDocuments(ctx, rev.ID)
	if err != nil && !errors.Is(err, errDamaged) {
		return nil, fmt.Errorf("read the policy documents: %w", err)
	}
	if err == nil {
		parsed, set, problem := s.cfg.load(documents, nil)
		if problem == nil {
			return &compiledDocuments{set: set, documents: documents, warnings: parsed.Warnings}, nil
		}
		err = problem
	}
	return s.refuseBroken(ctx, rev, err)
}

// refuseBroken logs that stored documents can't be used because of the given error, and returns a set that denies every
// call.
func (s *Service) refuseBroken(ctx context.Context, rev *store.Revision, err error) (*compiledDocuments, error) {
	s.deps.Log.ErrorContext(ctx, "the stored policy does not load, so every call is refused: apply other documents, or `sluice policy rollback`", "documents", rev.ID, "number", rev.Number, "error", err)
	out, refused := s.refuseAll("the stored policy " + rev.ID[:16] + " does not load, so every call is refused: an operator applies another one with sluice policy apply, or sluice policy rollback")
	if refused != nil {
		return nil, refused
	}
	problems := findings(err)
	out.rejected = problems[:min(len(problems), maxRejected)]
	return out, nil
}

// loadStored reads the active revision from the store into the given set, which is the service's first set.
func (s *Service) loadStored(ctx context.Context, set *activeSet) error {
	rev, err := s.store.ActiveRevision(ctx)
	if err != nil {
		return fmt.Errorf("read the active policy revision: %w", err)
	}
	loaded, err := s.compileStored(ctx, &rev)
	if err != nil {
		return err
	}
	set.use(&rev, loaded)
	set.activated = later(set.activated, rev.Activated)
	return nil
}

// use replaces the documents in the set, and everything that was compiled from the documents.
func (a *activeSet) use(rev *store.Revision, from *compiledDocuments) {
	a.stored, a.Set, a.documents, a.warnings, a.rejected = rev, from.set, from.documents, from.warnings, from.rejected
}

// loadingRevision is a revision that is being read and compiled.
type loadingRevision struct {
	// done is closed when reading and compiling has ended.
	done chan struct{}
	// err is the error from reading and compiling, or nil if the revision became active. It must be read only after done
	// was closed.
	err error
}

// waitForLoading waits while a newer revision is being read from the store, so that no decision is made with an older
// one. If the newer revision can't be read, waitForLoading returns [errNotLoaded]. If ctx is done first, it returns the
// error of ctx.
func (s *Service) waitForLoading(ctx context.Context) error {
	loading := s.loading.Load()
	if loading == nil {
		return nil
	}
	select {
	case <-loading.done:
		return loading.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readRevision activates the active revision in the store if another process has applied it. It must not be called
// concurrently.
func (s *Service) readRevision(ctx context.Context) error {
	if !s.cfg.Stored {
		return nil
	}
	known := s.active.Load().stored // this is read before the store, because ApplyDocuments may activate a newer revision meanwhile
	rev, err := s.store.ActiveRevision(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("read the active policy revision: %w", err)
	case !rev.Follows(known):
		return store.ErrRevisionsLost
	case rev.Number == known.Number:
		s.loading.Store(nil)
		return nil
	}
	loading := &loadingRevision{done: make(chan struct{})}
	s.loading.Store(loading)
	defer close(loading.done)
	if err := s.load(ctx, &rev); err != nil {
		loading.err = fmt.Errorf("%w: %w", errNotLoaded, err)
		return loading.err
	}
	s.loading.Store(nil)
	return nil
}

// load reads a revision from the store and makes it active.
func (s *Service) load(ctx context.Context, rev *store.Revision) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxRevisionRead)
	defer cancel()
	loaded, err := s.compileStored(ctx, rev)
	if err != nil {
		return err
	}
	s.publishRevision(ctx, rev, loaded)
	return nil
}

// publishRevision makes a revision from the store active, unless this revision or a newer one is already active.
func (s *Service) publishRevision(ctx context.Context, rev *store.Revision, loaded *compiledDocuments) {
	s.changing.Lock()
	defer s.changing.Unlock()
	old := s.active.Load()
	if old.stored.Number >= rev.Number {
		return
	}
	next := *old
	next.use(rev, loaded)
	next.Set = loaded.set.WithStops(old.Stops())
	next.number, next.revision, next.activated = old.number+1, revisionOf(next.Set, next.catalog), later(time.Now(), old.activated)
	s.active.Store(&next)
	s.deps.Log.InfoContext(ctx, "an operator has applied policy documents", "documents", rev.ID, "number", rev.Number, "author", rev.Author, "reason", rev.Reason, "revision", next.revision, "before", old.revision)
	s.warn(ctx)
	s.changes.Notify()
}
