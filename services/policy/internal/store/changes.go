package store

import (
	"context"
	"database/sql"
	"errors"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// MaxStagedChanges limits the number of staged changes in the store. The oldest changes are deleted if there are more.
// When a deleted change is requested again, people must approve it again.
const MaxStagedChanges = 100

// StagedChange is a change to the policy documents that waits for approval.
type StagedChange struct {
	// ID is the SHA-256 digest of the change, in hexadecimal.
	ID string
	// Replaces is the number of the activation that the change replaces, or 0 if no documents were active.
	Replaces int64
	// Params is the JSON that approvers see.
	Params string
	// Approval is the id of the approval that was requested for the change. It is empty until [Store.SetApproval] is
	// called.
	Approval string
}

// FindChange returns the staged change with the given ID. It returns false if no such change is staged.
func (s *Store) FindChange(ctx context.Context, id string) (change StagedChange, ok bool, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		change, ok, err = findChange(ctx, tx, id)
		return err
	})
	return change, ok, err
}

// StageChange stores a change and returns it. If a change with the same ID is already stored, StageChange returns the
// stored change. If the change replaces a different revision than the active one, StageChange returns
// [ErrRevisionChanged].
func (s *Store) StageChange(ctx context.Context, change StagedChange) (staged StagedChange, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		active, err := activeRevision(ctx, tx)
		if err != nil {
			return err
		}
		if active.Number != change.Replaces {
			return ErrRevisionChanged
		}
		var ok bool
		if staged, ok, err = findChange(ctx, tx, change.ID); err != nil || ok {
			return err
		}
		staged = change
		if _, err := tx.ExecContext(ctx, "INSERT INTO policy_changes (id, replaces, approval, staged, params) VALUES ($1, $2, '', $3, $4)",
			change.ID, change.Replaces, sqlstore.Micros(tx.Now), []byte(change.Params)); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM policy_changes WHERE id <> $1 AND id NOT IN
			(SELECT id FROM policy_changes WHERE id <> $1 ORDER BY staged DESC, id LIMIT $2)`, change.ID, MaxStagedChanges-1)
		return err
	})
	return staged, err
}

// SetApproval stores the id of the approval that was requested for a staged change.
func (s *Store) SetApproval(ctx context.Context, change, approval string) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE policy_changes SET approval = $1 WHERE id = $2", approval, change)
		return err
	})
}

// DeleteChanges deletes the staged changes that replace an older activation than the active one, because they can't
// become active. It returns the ids of their approvals.
func (s *Store) DeleteChanges(ctx context.Context) (approvals []string, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		approvals = nil
		active, err := activeRevision(ctx, tx)
		if err != nil {
			return err
		}
		err = tx.Each(ctx, func(rows *sql.Rows) error {
			var id string
			err := rows.Scan(&id)
			approvals = append(approvals, id)
			return err
		}, "SELECT approval FROM policy_changes WHERE replaces < $1 AND approval <> '' ORDER BY approval", active.Number)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM policy_changes WHERE replaces < $1", active.Number)
		return err
	})
	return approvals, err
}

func findChange(ctx context.Context, tx *sqlstore.Tx, id string) (change StagedChange, ok bool, err error) {
	var params []byte
	err = tx.QueryRowContext(ctx, "SELECT id, replaces, approval, params FROM policy_changes WHERE id = $1", id).
		Scan(&change.ID, &change.Replaces, &change.Approval, &params)
	if errors.Is(err, sql.ErrNoRows) {
		return StagedChange{}, false, nil
	}
	change.Params = string(params)
	return change, err == nil, err
}

// checkUnused returns [ErrApprovalUsed] if documents were already activated with the given approval.
func checkUnused(ctx context.Context, tx *sqlstore.Tx, approval string) error {
	if approval == "" {
		return nil
	}
	var number int64
	switch err := tx.QueryRowContext(ctx, "SELECT number FROM policy_activations WHERE approval = $1", approval).Scan(&number); {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	return ErrApprovalUsed
}
