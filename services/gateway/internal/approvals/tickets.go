package approvals

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/binding"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// maxTickets is the maximum number of stored approvals. If there are more, the gateway removes the oldest ones.
const maxTickets = 4096

// Call contains the properties of a call that an approval is bound to. The approval is also bound to the digest of the
// tool's definition, which Call does not contain.
type Call struct {
	// Principal is the caller.
	Principal *identityv1.Principal
	// Server, Identity, Method and Name identify the target of the call. Params contains the params exactly as the
	// client sent them.
	Server, Identity, Method, Name string
	Params                         []byte
}

// tickets stores the approvals that this gateway has requested, so that it can find them by their calls. If the policy
// later requires no approval for such a call, the gateway cancels the approval. The zero value cannot be used; call
// newTickets.
type tickets struct {
	mu sync.Mutex
	// by maps a call's key to the stored approvals for that key. ids maps an approval's id to its element in order.
	by  map[callKey][]*ticketEntry
	ids map[string]*list.Element
	// order contains all stored approvals, oldest first.
	order *list.List
}

// callKey contains the properties of a call that are cheap to compare. The gateway computes a call's digest only if an
// approval with the same key is stored.
type callKey struct{ tenant, subject, agent, person, server, name string }

type ticketEntry struct {
	key   callKey
	call  [32]byte
	id    string
	until time.Time
}

func newTickets() *tickets {
	return &tickets{by: make(map[callKey][]*ticketEntry), ids: make(map[string]*list.Element), order: list.New()}
}

func (c *Call) key() callKey {
	return callKey{
		tenant: c.Principal.GetTenant(), subject: c.Principal.GetSubject(), agent: c.Principal.GetAgent(), person: principal.ConnectionsOf(c.Principal).Subject,
		server: c.Server, name: c.Name,
	}
}

// digest returns a digest that is equal only for equal calls. It is computed like the digest of an approval, but
// without the tool's definition.
func (c *Call) digest() ([32]byte, error) {
	digest, _, err := binding.Bind(c.Principal, &approvalv1.BoundCall{
		ServerIdentity: c.Identity,
		Call:           &policyv1.Call{Method: c.Method, Server: c.Server, Name: c.Name, ParamsJson: string(c.Params)},
	})
	return digest, err
}

func (t *tickets) add(c Call, id string, until, now time.Time) {
	sum, err := c.digest()
	if err != nil {
		return // the approval service refuses these params, too
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeByID(id)
	for e := t.order.Front(); e != nil; e = t.order.Front() {
		if oldest := e.Value.(*ticketEntry); t.order.Len() < maxTickets && now.Before(oldest.until) { //nolint:forcetypeassert // the list holds only entries
			break
		}
		t.remove(e)
	}
	k := &ticketEntry{key: c.key(), call: sum, id: id, until: until}
	t.by[k.key] = append(t.by[k.key], k)
	t.ids[id] = t.order.PushBack(k)
}

// find returns the id of the newest stored approval for a call, or "" if there is none.
func (t *tickets) find(c Call, now time.Time) string {
	at := c.key()
	if !t.hasAny(at) {
		return ""
	}
	sum, err := c.digest()
	if err != nil {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range slices.Backward(t.by[at]) {
		if k.call == sum && now.Before(k.until) {
			return k.id
		}
	}
	return ""
}

func (t *tickets) hasAny(at callKey) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.by[at]) > 0
}

func (t *tickets) forget(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeByID(id)
}

func (t *tickets) removeByID(id string) {
	if e := t.ids[id]; e != nil {
		t.remove(e)
	}
}

func (t *tickets) remove(e *list.Element) {
	k := t.order.Remove(e).(*ticketEntry) //nolint:forcetypeassert // the list holds only entries
	delete(t.ids, k.id)
	rest := slices.DeleteFunc(t.by[k.key], func(other *ticketEntry) bool { return other == k })
	if len(rest) == 0 {
		delete(t.by, k.key)
		return
	}
	t.by[k.key] = rest
}

func (w *Client) remember(q Request, a *approvalv1.Approval) {
	until := a.GetExecuteBefore()
	last := until.AsTime()
	if until == nil {
		execute := w.cfg.Execute
		if own := a.GetTerms().GetExecuteWithin(); own != nil {
			execute = own.AsDuration()
		}
		last = a.GetDecideBefore().AsTime().Add(execute)
	}
	call := q.Call.GetCall()
	w.tickets.add(Call{
		Principal: q.Principal, Server: call.GetServer(), Identity: q.Call.GetServerIdentity(), Method: call.GetMethod(), Name: call.GetName(),
		Params: []byte(call.GetParamsJson()),
	}, a.GetId(), last, time.Now())
}

// unclaimedApproval returns the id of the approval that this gateway has requested for a call. It returns "" unless the
// approval is pending or approved and no call has claimed it. If the approval has ended, unclaimedApproval also removes
// it from w.tickets.
func (w *Client) unclaimedApproval(ctx context.Context, c Call) (id string, err error) {
	id = w.tickets.find(c, time.Now())
	if id == "" {
		return "", nil
	}
	a, refused := w.get(authn.OnBehalfOf(ctx, c.Principal), id)
	switch {
	case refused != nil && refused.Code == commonv1.Code_CODE_APPROVAL_UNAVAILABLE:
		return "", errUnavailable
	case a.GetState() == pending, a.GetState() == approved:
		return id, nil
	// A claimed approval stays in w.tickets, because it becomes approved again if the gateway releases the claim.
	case a.GetState() != approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED:
		w.tickets.forget(id)
	}
	return "", nil
}

var errUnavailable = errors.New("the approval service did not answer")
