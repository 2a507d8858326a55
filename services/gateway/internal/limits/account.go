package limits

import (
	"cmp"
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// Owner identifies the quotas to which memory is charged. It is immutable.
type Owner struct {
	// Accounts are the caller's quota accounts. They are zero if the memory does not belong to a single caller.
	Accounts principal.Accounts
	// Server is the name of the server that sends the message. It may be empty.
	Server string
}

type accountKey struct {
	what   accountKind
	who    principal.Key
	server string
}

type accountKind byte

const (
	ofAll accountKind = iota
	ofPrincipal
	ofPerson
	ofServer
)

// reader returns the account key under which time slices are counted. This is the key of the person at the root of the
// delegation chain. If there is no chain, it is the key of the person for whom the caller works. If the memory belongs
// to no caller, it is the key of the server.
func (h *Owner) reader() accountKey {
	if h.Accounts.Root() == (principal.Key{}) {
		return accountKey{what: ofServer, server: h.Server}
	}
	return accountKey{what: ofPerson, who: h.Accounts.Root()}
}

func (h *Owner) keys() []accountKey {
	all := h.Accounts.All()
	keys := make([]accountKey, 0, 2*len(all))
	for i := range all {
		if all[i].Principal {
			keys = append(keys, accountKey{what: ofPrincipal, who: all[i].Key})
		}
		if all[i].Person {
			keys = append(keys, accountKey{what: ofPerson, who: all[i].Key})
		}
	}
	return keys
}

// account contains the current usage of one quota. It exists as long as a [Memory] is charged to it.
type account struct {
	key   accountKey
	limit int
	// bytes is how many bytes are in use. holders is how many [Memory] values are charged to the account.
	bytes, holders int
	// waiting is how many [Memory] values wait for more memory.
	waiting int
	// growing contains the [Memory] values whose messages have not arrived completely. The Memory that began to grow
	// first is the first element.
	growing []*Memory
}

// available returns how many bytes of the account may be in use after the [Memory] has grown. The given number of bytes
// in the quota is reserved for the Memory that began to grow first.
func (a *account) available(h *Memory, reserved int) int {
	if len(a.growing) == 0 || a.growing[0] == h {
		return a.limit
	}
	return a.limit - reserved
}

func (a *account) isPrincipalOrPerson() bool {
	return a.key.what == ofPrincipal || a.key.what == ofPerson
}

func (a *account) isWaitedFor() bool {
	return a.isPrincipalOrPerson() && a.waiting > 0
}

func byAge(a, b *Memory) int { return cmp.Compare(a.since, b.since) }

// The caller of each function below must hold the budget's lock.

// joinAccounts charges a [Memory] to all accounts of its owner, except the server's account.
func (r *Budget) joinAccounts(h *Memory) {
	if len(h.accounts) > 0 {
		return
	}
	h.accounts = append(make([]*account, 0, 2+2*len(h.owner.Accounts.All())), r.enter(accountKey{}, r.limits.All))
	for _, k := range h.owner.keys() {
		limit := r.limits.Person
		if k.what == ofPrincipal {
			limit = r.limits.Principal
		}
		h.accounts = append(h.accounts, r.enter(k, limit))
	}
}

// enter returns the account with this key and increments the number of the account's holders. If there is no such
// account, enter creates it.
func (r *Budget) enter(key accountKey, limit int) *account {
	a := r.accounts[key]
	if a == nil {
		a = &account{key: key, limit: limit}
		r.accounts[key] = a
	}
	a.holders++
	return a
}

// leave decrements the number of an account's holders, and removes the account if it has no holders left.
func (r *Budget) leave(a *account) {
	if a.holders--; a.holders == 0 {
		delete(r.accounts, a.key)
	}
}

// startGrowth marks a [Memory] as growing. The Memory gets a sequence number and is charged to its server's account. If
// the Memory is already growing, startGrowth does nothing.
func (r *Budget) startGrowth(h *Memory) {
	if h.since > 0 {
		return
	}
	r.joinAccounts(h)
	if h.owner.Server != "" {
		a := r.enter(accountKey{what: ofServer, server: h.owner.Server}, r.limits.Server)
		a.bytes += chargedBytes(h.bytes)
		h.accounts = append(h.accounts, a)
	}
	r.begun++
	h.since = r.begun
	for _, a := range h.accounts {
		a.growing = append(a.growing, h)
	}
}

// endGrowth marks a [Memory] as no longer growing. The Memory then stops being charged to its server's account.
func (r *Budget) endGrowth(h *Memory) {
	if h.since == 0 {
		return
	}
	for _, a := range h.accounts {
		at, _ := slices.BinarySearchFunc(a.growing, h, byAge)
		a.growing = slices.Delete(a.growing, at, at+1)
	}
	h.since = 0
	if last := len(h.accounts) - 1; h.accounts[last].key.what == ofServer {
		h.accounts[last].bytes -= chargedBytes(h.bytes)
		r.leave(h.accounts[last])
		h.accounts = h.accounts[:last]
	}
}

func (r *Budget) set(h *Memory, bytes int) {
	if chargedBytes(bytes) > 0 {
		r.joinAccounts(h)
	}
	for _, a := range h.accounts {
		a.bytes += chargedBytes(bytes) - chargedBytes(h.bytes)
	}
	h.bytes = bytes
	if chargedBytes(bytes) > 0 || h.since > 0 {
		return
	}
	for _, a := range h.accounts {
		r.leave(a)
	}
	h.accounts = nil
}

// settle ends the growth of a [Memory], sets its size, and gives the released bytes to waiters.
func (r *Budget) settle(h *Memory, bytes int) {
	before, grew := chargedBytes(h.bytes), h.since > 0
	r.endGrowth(h)
	r.set(h, bytes)
	if grew || chargedBytes(bytes) < before {
		r.grantWaiters()
	}
}

// add enlarges a [Memory] if its quotas allow that and no other Memory of the same principal or person waits. It does
// not check the quotas of the accounts in counted, because the bytes are already charged to them.
func (r *Budget) add(h *Memory, bytes int, counted []*account) bool {
	if h.closed {
		return false
	}
	more := chargedBytes(h.bytes+bytes) - chargedBytes(h.bytes)
	if more > 0 {
		r.joinAccounts(h)
	}
	for _, a := range h.accounts {
		if more > 0 && !slices.Contains(counted, a) && (a.bytes+more > a.available(h, r.limits.Last) || a.isWaitedFor()) {
			r.set(h, h.bytes)
			return false
		}
	}
	r.set(h, h.bytes+bytes)
	return true
}
