package store

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/internal/publicname"
)

// Filter selects approvals in a tenant. Empty fields are ignored.
type Filter struct {
	// Tenant is required.
	Tenant string
	ID     string
	// States lists the states that an approval may have. If it is empty, an approval may have any state. Server, Name,
	// Subject (of the requester) and Holder (of the newest claim) must match exactly.
	States                        []approvalv1.ApprovalState
	Server, Name, Subject, Holder string
	// Requester selects the approvals that this principal requested with the same delegation chain. If it is nil, all
	// requesters match.
	Requester *identityv1.Principal
	// Alike selects approvals of the same call, with any definition of its tool. See [lifecycle.Record.Alike].
	Alike []byte
}

// Listed is an approval in a list. In its record, only the field Approval is set. The call, the decision and the claims
// are not read, because they may be large.
type Listed struct {
	*lifecycle.Record
	// Opened is the number of the transition that opened the approval. Moved is the number of its newest transition.
	// The store numbers the transitions of all approvals in one ascending sequence.
	Opened, Moved int64
}

// List reads at most limit approvals, newest first. If cursor is not 0, List reads only approvals for which
// [Listed.Opened] is lower than cursor.
func (t *Tx) List(ctx context.Context, f Filter, cursor int64, limit int) ([]Listed, error) {
	c := f.conditions()
	if cursor > 0 {
		c.add("opened < %s", cursor)
	}
	return t.listed(ctx, c, "ORDER BY opened DESC", limit)
}

// MovedSince reads at most limit approvals for which [Listed.Moved] is higher than lastMove, sorted by this number.
func (t *Tx) MovedSince(ctx context.Context, f Filter, lastMove int64, limit int) ([]Listed, error) {
	c := f.conditions()
	c.add("moved > %s", lastMove)
	return t.listed(ctx, c, "ORDER BY moved", limit)
}

// maxWaiting is the maximum number of approvals that [Tx.OtherDefinitions] reads. It is higher than the maximum number
// of pending approvals of one caller.
const maxWaiting = 1000

// OtherDefinitions returns the ids of the caller's pending and approved approvals for the same call that are bound to
// another definition of the tool or to another server.
func (t *Tx) OtherDefinitions(ctx context.Context, asker *identityv1.Principal, call *approvalv1.BoundCall, alike []byte) (ids []string, err error) {
	found, err := t.List(ctx, Filter{
		Tenant: asker.GetTenant(), Requester: asker, Server: call.GetCall().GetServer(), Name: publicname.Of(call.GetCall().GetName()), Alike: alike,
		States: []approvalv1.ApprovalState{approvalv1.ApprovalState_APPROVAL_STATE_PENDING, approvalv1.ApprovalState_APPROVAL_STATE_APPROVED},
	}, 0, maxWaiting)
	for _, l := range found {
		if l.Approval.GetServerIdentity() != call.GetServerIdentity() || !bytes.Equal(l.Approval.GetDefinitionDigest(), call.GetCall().GetDefinitionDigest()) {
			ids = append(ids, l.Approval.GetId())
		}
	}
	return ids, err
}

// NewestMove returns the number of the newest transition, or an error if the store cannot be read.
func (t *Tx) NewestMove(ctx context.Context) (n int64, err error) {
	err = t.inner.QueryRowContext(ctx, "SELECT n FROM moved").Scan(&n)
	return n, err
}

func (t *Tx) listed(ctx context.Context, c conditions, order string, limit int) (out []Listed, err error) {
	c.args = append(c.args, limit)
	where := fmt.Sprintf("%s %s LIMIT $%d", strings.Join(c.parts, " AND "), order, len(c.args))
	err = t.inner.Each(ctx, func(rows *sql.Rows) error {
		var raw []byte
		l := Listed{Record: &lifecycle.Record{Approval: new(approvalv1.Approval)}}
		if err := rows.Scan(&raw, &l.Opened, &l.Moved); err != nil {
			return err
		}
		if err := proto.Unmarshal(raw, l.Approval); err != nil {
			return fmt.Errorf("read an approval: %w", err)
		}
		out = append(out, l)
		return nil
	}, "SELECT approval, opened, moved FROM approvals WHERE "+where, c.args...)
	return out, err
}

type conditions struct {
	parts []string
	args  []any
}

// add adds a condition for a value. It replaces %s in the condition with the placeholder for the value.
func (c *conditions) add(text string, arg any) {
	c.args = append(c.args, arg)
	c.parts = append(c.parts, fmt.Sprintf(text, fmt.Sprintf("$%d", len(c.args))))
}

func (f *Filter) conditions() conditions {
	var c conditions
	c.add("tenant = %s", f.Tenant)
	for column, value := range map[string]string{"id": f.ID, "server": f.Server, "name": f.Name, "subject": f.Subject, "holder": f.Holder} {
		if value != "" {
			c.add(column+" = %s", value)
		}
	}
	if f.Requester != nil {
		c.add("asker = %s", RequesterDigest(f.Requester))
	}
	if len(f.Alike) > 0 {
		c.add("alike = %s", f.Alike)
	}
	if len(f.States) > 0 {
		var any []string
		for _, s := range f.States {
			c.args = append(c.args, int64(s))
			any = append(any, fmt.Sprintf("$%d", len(c.args)))
		}
		c.parts = append(c.parts, "state IN ("+strings.Join(any, ", ")+")")
	}
	return c
}
