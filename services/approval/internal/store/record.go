package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// Get reads an approval of a tenant. It returns [ErrNotFound] if there is none.
func (t *Tx) Get(ctx context.Context, tenant, id string) (*lifecycle.Record, error) {
	return single(t.query(ctx, "tenant = $1 AND id = $2", tenant, id))
}

// GetHead reads an approval of a tenant without its call, which may be large. It returns [ErrNotFound] if there is
// none.
func (t *Tx) GetHead(ctx context.Context, tenant, id string) (*lifecycle.Record, error) {
	found, err := t.List(ctx, Filter{Tenant: tenant, ID: id}, 0, 1)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, ErrNotFound
	}
	return found[0].Record, nil
}

// GetAnyTenant reads the approval with the given id in any tenant. The caller must check the claim and the holder of
// the claim. GetAnyTenant returns [ErrNotFound] if there is no such approval.
func (t *Tx) GetAnyTenant(ctx context.Context, id string) (*lifecycle.Record, error) {
	return single(t.query(ctx, "id = $1", id))
}

// Newest reads the newest approval of a call. It returns [ErrNotFound] if there is none.
func (t *Tx) Newest(ctx context.Context, tenant string, digest []byte) (*lifecycle.Record, error) {
	return single(t.query(ctx, "tenant = $1 AND digest = $2 ORDER BY opened DESC LIMIT 1", tenant, digest))
}

// Previous reads the newest approval, other than r, of the same caller and tool whose call ran or might have run. If r
// has ended, Previous considers only approvals that were opened before r. It returns [ErrNotFound] if there is none.
func (t *Tx) Previous(ctx context.Context, r *lifecycle.Record) (*lifecycle.Record, error) {
	a := r.Approval
	where := `asker = $1 AND server = $2 AND name = $3 AND id <> $4 AND (state IN ($5, $6) OR state = $7 AND EXISTS (
		SELECT 1 FROM claims WHERE claims.approval = approvals.id AND ending IN ($8, $9)))`
	if r.Ended() {
		where += " AND opened < (SELECT opened FROM approvals WHERE id = $4)"
	}
	return single(t.query(ctx, where+" ORDER BY opened DESC LIMIT 1", RequesterDigest(a.GetRequester()), a.GetServer(), a.GetName(), a.GetId(),
		int64(approvalv1.ApprovalState_APPROVAL_STATE_DONE), int64(approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN),
		int64(approvalv1.ApprovalState_APPROVAL_STATE_FAILED), int64(lifecycle.Reported), int64(lifecycle.Expired)))
}

// Denied returns the approval of a call that a person has denied, if the cool-down has not ended. It finds the call by
// digest or by bare, which is the digest of the call's essential parts. If several approvals match, Denied returns the
// approval with the latest end of the cool-down. If no approval matches, it returns nil.
func (t *Tx) Denied(ctx context.Context, tenant string, digest, bare []byte) (*approvalv1.Approval, error) {
	var raw []byte
	var until int64
	err := t.inner.QueryRowContext(ctx, `SELECT approval, denied_until FROM approvals WHERE tenant = $1 AND (digest = $2 OR bare = $3)
		AND denied_until > $4 ORDER BY denied_until DESC LIMIT 1`, tenant, digest, bare, sqlstore.Micros(t.Now)).Scan(&raw, &until)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	a := new(approvalv1.Approval)
	if err := proto.Unmarshal(raw, a); err != nil {
		return nil, fmt.Errorf("read an approval: %w", err)
	}
	a.DeniedUntil = timestamppb.New(time.UnixMicro(until)) // records that older versions wrote don't contain the field
	return a, nil
}

// Unsettled returns the id of the newest approval of the same call that was opened before r and has an unknown outcome.
// It returns "" if there is none.
func (t *Tx) Unsettled(ctx context.Context, r *lifecycle.Record) (id string, err error) {
	a := r.Approval
	err = t.inner.QueryRowContext(ctx, `SELECT id FROM approvals WHERE tenant = $1 AND digest = $2 AND state = $3
		AND opened < (SELECT opened FROM approvals WHERE id = $4) ORDER BY opened DESC LIMIT 1`,
		a.GetRequester().GetTenant(), a.GetDigest(), int64(approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN), a.GetId()).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return id, err
}

// Grants reads the approvals whose live grants may cover the call of r. The grant that expires last comes first.
func (t *Tx) Grants(ctx context.Context, r *lifecycle.Record) ([]*lifecycle.Record, error) {
	return t.query(ctx, "family = $1 AND granted_to > $2 ORDER BY granted_to DESC, opened", grantFamily(r), sqlstore.Micros(t.Now))
}

// Coverable reads at most limit pending approvals of calls that r's grant may cover, oldest first.
func (t *Tx) Coverable(ctx context.Context, r *lifecycle.Record, limit int64) ([]*lifecycle.Record, error) {
	return t.query(ctx, "asker = $1 AND server = $2 AND state = $3 AND family = $4 AND id <> $5 ORDER BY opened LIMIT $6",
		RequesterDigest(r.Approval.GetRequester()), r.Approval.GetServer(), int64(approvalv1.ApprovalState_APPROVAL_STATE_PENDING), grantFamily(r), r.Approval.GetId(), limit)
}

// Pending counts the pending approvals that count against the limit of an account. who is the account's
// [Account.Digest].
func (t *Tx) Pending(ctx context.Context, who []byte) (int, error) {
	var n int
	err := t.inner.QueryRowContext(ctx, "SELECT count(*) FROM pending WHERE who = $1", who).Scan(&n)
	return n, err
}

// History reads at most limit of the newest transitions of an approval, and returns them oldest first.
func (t *Tx) History(ctx context.Context, id string, limit int) (out []*approvalv1.Move, err error) {
	err = t.inner.Each(ctx, func(rows *sql.Rows) error {
		var raw []byte
		if err := rows.Scan(&raw); err != nil {
			return err
		}
		m := new(approvalv1.Move)
		if err := proto.Unmarshal(raw, m); err != nil {
			return fmt.Errorf("read a move of approval %s: %w", id, err)
		}
		out = append(out, m)
		return nil
	}, "SELECT move FROM (SELECT version, move FROM moves WHERE approval = $1 ORDER BY version DESC LIMIT $2) AS newest ORDER BY version", id, limit)
	return out, err
}

func single(records []*lifecycle.Record, err error) (*lifecycle.Record, error) {
	if err == nil && len(records) == 0 {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return records[0], nil
}

func (t *Tx) query(ctx context.Context, where string, args ...any) (out []*lifecycle.Record, err error) {
	err = t.inner.Each(ctx, func(rows *sql.Rows) error {
		r, err := scanRecord(rows)
		out = append(out, r)
		return err
	}, "SELECT approval, call, decision, decide, execute, alike FROM approvals WHERE "+where, args...)
	if err != nil {
		return nil, err
	}
	for _, r := range out {
		if r.Claims, err = t.claims(ctx, r.Approval.GetId()); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func scanRecord(rows *sql.Rows) (*lifecycle.Record, error) {
	var approval, call, decision, alike []byte
	var decide, execute int64
	if err := rows.Scan(&approval, &call, &decision, &decide, &execute, &alike); err != nil {
		return nil, err
	}
	r := &lifecycle.Record{
		Approval: new(approvalv1.Approval), Call: new(approvalv1.BoundCall), Decision: new(policyv1.Decision),
		Times: lifecycle.Times{Decide: time.Duration(decide), Execute: time.Duration(execute)},
		Alike: alike,
	}
	err := errors.Join(proto.Unmarshal(approval, r.Approval), proto.Unmarshal(call, r.Call), proto.Unmarshal(decision, r.Decision))
	if err != nil {
		return nil, fmt.Errorf("read an approval: %w", err)
	}
	return r, nil
}

func (t *Tx) claims(ctx context.Context, id string) (out []lifecycle.Claim, err error) {
	err = t.inner.Each(ctx, func(rows *sql.Rows) error {
		var c lifecycle.Claim
		err := rows.Scan(&c.ID, &c.Holder, &c.Lease, &c.Attempt, &c.End)
		out = append(out, c)
		return err
	}, "SELECT id, holder, lease, attempt, ending FROM claims WHERE approval = $1 ORDER BY place", id)
	return out, err
}

// Save writes a record that is new or that this transaction has read. It also writes the record's new transitions and
// their notices.
func (t *Tx) Save(ctx context.Context, r *lifecycle.Record) error {
	a := r.Approval
	number, err := t.nextMoveNumber(ctx)
	if err != nil {
		return err
	}
	approval, err1 := proto.Marshal(a)
	call, err2 := proto.Marshal(r.Call)
	decision, err3 := proto.Marshal(r.Decision)
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("write approval %s: %w", a.GetId(), err)
	}
	_, err = t.inner.ExecContext(ctx, `INSERT INTO approvals (id, opened, moved, version, tenant, digest, state, due, ended, server, name,
			subject, asker, holder, family, granted_to, approval, call, decision, decide, execute, alike, bare, denied_until)
		VALUES ($1, $2, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23)
		ON CONFLICT (id) DO UPDATE SET moved = $2, version = $3, state = $6, due = $7, ended = $8, holder = $13, family = $14,
			granted_to = $15, approval = $16, call = $17, decision = $18, decide = $19, execute = $20, denied_until = $23`,
		a.GetId(), number, a.GetVersion(), a.GetRequester().GetTenant(), a.GetDigest(), int64(a.GetState()), sqlstore.Micros(r.Due()),
		micros(a.GetEnded()), a.GetServer(), a.GetName(), a.GetRequester().GetSubject(), RequesterDigest(a.GetRequester()),
		a.GetClaim().GetHolder(), grantFamily(r), micros(a.GetGrant().GetExpires()), approval, call, decision,
		int64(r.Times.Decide), int64(r.Times.Execute), append([]byte{}, r.Alike...), append([]byte{}, r.Bare...), micros(a.GetDeniedUntil()))
	if err != nil {
		return fmt.Errorf("write approval %s: %w", a.GetId(), err)
	}
	t.changed = true
	if r.RequestsDecision() {
		if err := t.saveRequestCount(ctx, number, a.GetRequester()); err != nil {
			return fmt.Errorf("count the request for approval %s: %w", a.GetId(), err)
		}
	}
	if err := errors.Join(t.saveClaims(ctx, r), t.saveNotices(ctx, r, number), t.saveMoves(ctx, r), t.savePending(ctx, r)); err != nil {
		return err
	}
	// gofail: var approvalBeforeCommit struct{}
	return nil
}

// UpdateClaim writes a record in which a lease or a claim has changed without a transition. Clients that watch
// approvals don't receive this change, because it has no transition number.
func (t *Tx) UpdateClaim(ctx context.Context, r *lifecycle.Record) error {
	approval, err := proto.Marshal(r.Approval)
	if err != nil {
		return fmt.Errorf("update approval %s: %w", r.Approval.GetId(), err)
	}
	_, err = t.inner.ExecContext(ctx, "UPDATE approvals SET due = $2, approval = $3 WHERE id = $1", r.Approval.GetId(), sqlstore.Micros(r.Due()), approval)
	if err != nil {
		return fmt.Errorf("update approval %s: %w", r.Approval.GetId(), err)
	}
	return t.saveClaims(ctx, r)
}

// Prune deletes the approvals that ended before the given time and whose grants also expired before that time. It
// returns the number of deleted approvals.
func (t *Tx) Prune(ctx context.Context, before time.Time) (int64, error) {
	done, err := t.inner.ExecContext(ctx, "DELETE FROM approvals WHERE ended > 0 AND ended < $1 AND granted_to < $1", sqlstore.Micros(before))
	if err != nil {
		return 0, fmt.Errorf("delete old approvals: %w", err)
	}
	return done.RowsAffected()
}

func (t *Tx) nextMoveNumber(ctx context.Context) (n int64, err error) {
	err = t.inner.QueryRowContext(ctx, "UPDATE moved SET n = n + 1 RETURNING n").Scan(&n)
	return n, err
}

func (t *Tx) saveClaims(ctx context.Context, r *lifecycle.Record) error {
	for i := max(0, len(r.Claims)-2); i < len(r.Claims); i++ { // older claims have ended and don't change
		c := r.Claims[i]
		_, err := t.inner.ExecContext(ctx, `INSERT INTO claims (approval, place, id, holder, lease, attempt, ending) VALUES ($1, $2, $3, $4, $5, $6, $7)
			ON CONFLICT (approval, place) DO UPDATE SET ending = $7`,
			r.Approval.GetId(), i, c.ID, c.Holder, c.Lease, c.Attempt, int64(c.End))
		if err != nil {
			return fmt.Errorf("write the claims of approval %s: %w", r.Approval.GetId(), err)
		}
	}
	return nil
}

// saveMoves adds the record's new transitions to its stored history and clears r.Moves.
func (t *Tx) saveMoves(ctx context.Context, r *lifecycle.Record) error {
	for _, m := range r.Moves {
		raw, err := proto.Marshal(m)
		if err != nil {
			return err
		}
		_, err = t.inner.ExecContext(ctx, "INSERT INTO moves (approval, version, move) VALUES ($1, $2, $3)", r.Approval.GetId(), m.GetVersion(), raw)
		if err != nil {
			return fmt.Errorf("write the history of approval %s: %w", r.Approval.GetId(), err)
		}
		t.changes.Transitions = append(t.changes.Transitions, newTransition(r, m))
	}
	r.Moves = nil
	return nil
}

// savePending stores the accounts against whose limits a pending approval counts.
func (t *Tx) savePending(ctx context.Context, r *lifecycle.Record) error {
	id := r.Approval.GetId()
	if _, err := t.inner.ExecContext(ctx, "DELETE FROM pending WHERE approval = $1", id); err != nil {
		return err
	}
	if r.Approval.GetState() != approvalv1.ApprovalState_APPROVAL_STATE_PENDING {
		return nil
	}
	for _, a := range Accounts(r.Approval.GetRequester()) {
		if _, err := t.inner.ExecContext(ctx, "INSERT INTO pending (approval, who) VALUES ($1, $2) ON CONFLICT DO NOTHING", id, a.Digest); err != nil {
			return err
		}
	}
	return nil
}

// grantFamily returns a digest of the properties that are the same for all calls under one grant.
func grantFamily(r *lifecycle.Record) []byte {
	a := r.Approval
	return hash(string(RequesterDigest(a.GetRequester())), a.GetServer(), a.GetServerIdentity(), a.GetMethod(), a.GetName(),
		string(a.GetDefinitionDigest()), string(a.GetRuleDigest()), a.GetTerms().GetGrant().GetScope())
}

func micros(t *timestamppb.Timestamp) int64 {
	if t == nil {
		return 0
	}
	return sqlstore.Micros(t.AsTime())
}
