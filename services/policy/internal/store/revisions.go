package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

const (
	// MaxRevisions limits the number of stored activations.
	MaxRevisions = 1000
	// MaxRevisionBytes limits the total size in bytes of the documents in all stored activations. Documents that several
	// activations share count only once.
	MaxRevisionBytes = 256 << 20
	// minRevisions is the number of newest activations that are never deleted: the active one and the one before it.
	minRevisions = 2
)

// These are the errors about revisions. They can be wrapped, so use errors.Is to compare them.
var (
	// ErrRevisionUnknown means that the given id is not the id of a stored revision.
	ErrRevisionUnknown = errors.New("no stored revision has this id: `sluice policy revisions` lists all of them")
	// ErrRevisionAmbiguous means that the ids of several stored revisions begin with the given digits.
	ErrRevisionAmbiguous = errors.New("several stored revisions begin with these digits: write more of them")
	// ErrRevisionChanged means that the active revision is not the revision that the author of a change expected.
	ErrRevisionChanged = errors.New("another revision is active than the expected one")
	// ErrApprovalUsed means that an approval can't be used again, because documents were already activated with it.
	ErrApprovalUsed = errors.New("this approval has made documents active before")
	// ErrRevisionsLost means that a revision that was active earlier is not in the store, for example because the store
	// was restored from a backup.
	ErrRevisionsLost = errors.New("the store has lost policy revisions that were active: restart the policy services to use what the store contains")
)

// Revision is one activation of policy documents. The zero Revision means that the store contains no revisions.
type Revision struct {
	// Number identifies the activation. It is 1 for the first activation, and increases by 1 with each activation.
	Number int64
	// ID is the SHA-256 digest of the documents in hexadecimal. Several activations can have the same documents.
	ID string
	// Author is the subject of the operator who applied the documents. Reason is the reason that the operator gave.
	Author, Reason string
	// Activated is the time of the activation. An activation with a greater Number always has a later time, even if the
	// store's clock was set back.
	Activated time.Time
	// Approval is the id of the approval that permitted the activation. ApprovedBy is a JSON array with the subjects of
	// the people who approved it. Both are empty if no approval was required.
	Approval, ApprovedBy string
}

// Follows reports whether r can be active after the given revision was active. If it returns false, the store has lost
// revisions.
func (r *Revision) Follows(before *Revision) bool {
	return r.Number > before.Number || r.Number == before.Number && r.ID == before.ID && r.Activated.Equal(before.Activated)
}

// Activation says which documents to activate, and under which conditions.
type Activation struct {
	// ID is the SHA-256 digest of the documents, in hexadecimal. The store does not interpret Documents.
	ID        string
	Documents []byte
	// Author and Reason have the same meaning as the fields in [Revision].
	Author, Reason string
	// Expected is the ID that the active revision must have. A pointer to "" means that no revision may be stored yet.
	// If Expected is nil, any revision may be active.
	Expected *string
	// Replaces is the number that the active revision must have. A pointer to 0 means that no revision may be stored
	// yet. If Replaces is nil, any revision may be active.
	Replaces *int64
	// Approval and ApprovedBy have the same meaning as the fields in [Revision].
	Approval, ApprovedBy string
	// Known is a revision that, as far as the caller knows, was active earlier. If the active revision does not follow
	// Known, the store has lost revisions.
	Known Revision
	// Again is true if a new activation must be stored even if the documents are already active.
	Again bool
}

// ActivateRevision stores documents and makes them active. If the documents are already active and Again is false, it
// changes nothing and returns false. The store sets the number and the time of the activation. Then it deletes the
// oldest activations until it has at most [MaxRevisions] with at most [MaxRevisionBytes]. The error can be
// [ErrRevisionChanged], [ErrApprovalUsed], [ErrRevisionsLost] or [sqlstore.ErrUnavailable]. With [ErrRevisionChanged],
// ActivateRevision also returns the active revision.
func (s *Store) ActivateRevision(ctx context.Context, want *Activation) (active Revision, changed bool, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		changed = false
		if active, err = activeRevision(ctx, tx); err != nil {
			return err
		}
		if !active.Follows(&want.Known) {
			return ErrRevisionsLost
		}
		if active.ID == want.ID && !want.Again {
			return nil
		}
		if want.Expected != nil && *want.Expected != active.ID || want.Replaces != nil && *want.Replaces != active.Number {
			return ErrRevisionChanged
		}
		if err := checkUnused(ctx, tx, want.Approval); err != nil {
			return err
		}
		changed = true
		active = Revision{
			Number: active.Number + 1, ID: want.ID, Author: want.Author, Reason: want.Reason, Activated: laterThan(active.Activated, tx.Now),
			Approval: want.Approval, ApprovedBy: want.ApprovedBy,
		}
		if err := insertRevision(ctx, tx, &active, want.Documents); err != nil {
			return err
		}
		return deleteOldRevisions(ctx, tx)
	})
	return active, changed, err
}

// laterThan returns the time now if it is later than the time previous. Otherwise, for example because the clock was
// set back, it returns the time one microsecond after previous.
func laterThan(previous, now time.Time) time.Time {
	if now.After(previous) {
		return now
	}
	return previous.Add(time.Microsecond)
}

func insertRevision(ctx context.Context, tx *sqlstore.Tx, r *Revision, documents []byte) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO policy_documents (id, bytes, documents) VALUES ($1, $2, $3)
		ON CONFLICT (id) DO UPDATE SET bytes = excluded.bytes, documents = excluded.documents`, r.ID, len(documents), documents); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO policy_activations (number, documents, author, reason, activated, approval, approved_by) VALUES ($1, $2, $3, $4, $5, $6, $7)",
		r.Number, r.ID, r.Author, r.Reason, sqlstore.Micros(r.Activated), r.Approval, r.ApprovedBy)
	return err
}

// storedSize is the size of the documents of one activation, in bytes.
type storedSize struct {
	number int64
	id     string
	bytes  int64
}

func deleteOldRevisions(ctx context.Context, tx *sqlstore.Tx) error {
	var all []storedSize
	err := tx.Each(ctx, func(rows *sql.Rows) error {
		var s storedSize
		err := rows.Scan(&s.number, &s.id, &s.bytes)
		all = append(all, s)
		return err
	}, "SELECT number, id, bytes FROM policy_activations AS a JOIN policy_documents AS d ON a.documents = d.id ORDER BY number DESC")
	if err != nil {
		return err
	}
	last := newestDeleted(all, MaxRevisions, MaxRevisionBytes)
	if last == 0 {
		return nil
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM policy_activations WHERE number <= $1", last); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "DELETE FROM policy_documents WHERE id NOT IN (SELECT documents FROM policy_activations)")
	return err
}

// newestDeleted returns the number of the newest activation that must be deleted, or 0 if none must be deleted. All
// older activations must be deleted too. The parameter all must be sorted, newest activation first.
func newestDeleted(all []storedSize, maxCount int, maxBytes int64) int64 {
	counted, total := make(map[string]bool), int64(0)
	for i, s := range all {
		if !counted[s.id] {
			counted[s.id] = true
			total += s.bytes
		}
		if i >= minRevisions && (i >= maxCount || total > maxBytes) {
			return s.number
		}
	}
	return 0
}

// ActiveRevision returns the active revision, or the zero Revision if no revision is stored.
func (s *Store) ActiveRevision(ctx context.Context) (active Revision, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		active, err = activeRevision(ctx, tx)
		return err
	})
	return active, err
}

// DocumentsOf returns the documents with the given ID. If the store does not have them, it returns
// [ErrRevisionUnknown].
func (s *Store) DocumentsOf(ctx context.Context, id string) (documents []byte, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		err := tx.QueryRowContext(ctx, "SELECT documents FROM policy_documents WHERE id = $1", id).Scan(&documents)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrRevisionUnknown
		}
		return err
	})
	return documents, err
}

// FindRevision returns the newest activation of the documents whose ID begins with the given prefix. The prefix must
// consist of hexadecimal digits in lower case. The error can be [ErrRevisionUnknown], [ErrRevisionAmbiguous] or
// [sqlstore.ErrUnavailable].
func (s *Store) FindRevision(ctx context.Context, prefix string) (found Revision, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		var ids []string
		err := tx.Each(ctx, func(rows *sql.Rows) error {
			var id string
			err := rows.Scan(&id)
			ids = append(ids, id)
			return err
		}, "SELECT id FROM policy_documents WHERE id LIKE $1 LIMIT 2", prefix+"%")
		switch {
		case err != nil:
			return err
		case len(ids) == 0:
			return ErrRevisionUnknown
		case len(ids) > 1:
			return ErrRevisionAmbiguous
		}
		all, err := readRevisions(ctx, tx, "WHERE documents = $1 ORDER BY number DESC LIMIT 1", ids[0])
		if err == nil {
			found = all[0] // there is an activation, because documents without activations are deleted
		}
		return err
	})
	return found, err
}

// Revisions returns at most limit activations, newest first. It returns only activations with a Number less than below.
// If below is 0, it returns the newest activations.
func (s *Store) Revisions(ctx context.Context, below int64, limit int) (all []Revision, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		all, err = readRevisions(ctx, tx, "WHERE number < $1 OR $1 = 0 ORDER BY number DESC LIMIT $2", below, limit)
		return err
	})
	return all, err
}

func activeRevision(ctx context.Context, tx *sqlstore.Tx) (Revision, error) {
	all, err := readRevisions(ctx, tx, "ORDER BY number DESC LIMIT 1")
	if err != nil || len(all) == 0 {
		return Revision{}, err
	}
	return all[0], nil
}

func readRevisions(ctx context.Context, tx *sqlstore.Tx, where string, args ...any) (out []Revision, err error) {
	err = tx.Each(ctx, func(rows *sql.Rows) error {
		var r Revision
		var activated int64
		if err := rows.Scan(&r.Number, &r.ID, &r.Author, &r.Reason, &activated, &r.Approval, &r.ApprovedBy); err != nil {
			return fmt.Errorf("read a revision of the policy: %w", err)
		}
		r.Activated = sqlstore.Time(activated)
		out = append(out, r)
		return nil
	}, "SELECT number, documents, author, reason, activated, approval, approved_by FROM policy_activations "+where, args...)
	return out, err
}
