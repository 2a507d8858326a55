package limits

import (
	"cmp"
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// Owner says on whose quotas memory counts. It is immutable.
type Owner struct {
	// Accounts are those of the caller; the zero value if the memory belongs to no single caller.
	Accounts principal.Accounts
	// Server is the server that sends; may be empty.
	Server string
}

type accountKey struct {
	what   accountKind
	who    principal.Key
	server string
}

// accountKind is the kind of an account.
type accountKind byte

const (
	ofAll accountKind = iota
	ofPrincipal
	ofPerson
	ofServer
)

// reader returns the key under which processor slots are counted: the person behind the caller, or the server if there
// is no caller.
func (h *Owner) reader() accountKey {
	if h.Accounts.Root() == (principal.Key{}) {
		return accountKey{what: ofServer, server: h.Server}
	}
	return accountKey{what: ofPerson, who: h.Accounts.Root()}
}

// keys returns the keys of the accounts of the principals and the persons.
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

// account is the use of one quota. It exists while a [Memory] counts on it.
type account struct {
	key   accountKey
	limit int
	// bytes is the number of bytes taken, and holders the number of [Memory] values that count on the account.
	bytes, holders int
	// waiting is the number of [Memory] values that wait to grow.
	waiting int
	// growing are the incomplete [Memory] values; the value that began to grow first is first.
	growing []*Memory
}

// available returns how many bytes may be taken in all after a [Memory] has grown. Only the Memory that began to grow
// first may use the reserve.
func (a *account) available(h *Memory, last int) int {
	if len(a.growing) == 0 || a.growing[0] == h {
		return a.limit
	}
	return a.limit - last
}

// isPrincipalOrPerson reports whether the account is of a principal or a person.
func (a *account) isPrincipalOrPerson() bool {
	return a.key.what == ofPrincipal || a.key.what == ofPerson
}

// isWaitedFor reports whether a [Memory] of the account's principal or person waits.
func (a *account) isWaitedFor() bool {
	return a.isPrincipalOrPerson() && a.waiting > 0
}

func byAge(a, b *Memory) int { return cmp.Compare(a.since, b.since) }

// The caller of each function below holds the lock of the budget.

// joinAccounts makes a [Memory] count on its accounts, except on the account of its server.
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

// enter returns an account, and counts one more holder of it.
func (r *Budget) enter(key accountKey, limit int) *account {
	a := r.accounts[key]
	if a == nil {
		a = &account{key: key, limit: limit}
		r.accounts[key] = a
	}
	a.holders++
	return a
}

// leave uncounts a holder of an account, and removes an account that has no holders.
func (r *Budget) leave(a *account) {
	if a.holders--; a.holders == 0 {
		delete(r.accounts, a.key)
	}
}

// startGrowth starts the growth of a [Memory], if the growth has not begun. The Memory gets its sequence number, and
// counts on the account of its server.
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

// endGrowth ends the growth of a [Memory], which then no longer counts on the account of its server.
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

// set changes the size of a [Memory].
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

// settle ends the growth of a [Memory] with this size, and grants waiters the bytes that became free.
func (r *Budget) settle(h *Memory, bytes int) {
	before, grew := chargedBytes(h.bytes), h.since > 0
	r.endGrowth(h)
	r.set(h, bytes)
	if grew || chargedBytes(bytes) < before {
		r.grantWaiters()
	}
}

// add enlarges a [Memory] if its quotas allow that and no other Memory of its principal or persons waits. It does not
// check the accounts in counted, on which the bytes count already.
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
