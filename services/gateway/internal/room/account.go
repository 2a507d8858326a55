package room

import (
	"cmp"
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// Holder is whose room is taken. It does not change.
type Holder struct {
	// Accounts are those of the caller that asked; the zero value where no single caller did.
	Accounts principal.Accounts
	// Server is the one that sends; may be empty.
	Server string
}

// key names an account.
type key struct {
	what   kind
	who    principal.Key
	server string
}

// kind is what an account is of.
type kind byte

const (
	ofAll kind = iota
	ofPrincipal
	ofPerson
	ofServer
)

// reader is whose turn it is to read: the person's behind the caller, or the server's where there is no caller.
func (h *Holder) reader() key {
	if h.Accounts.Root() == (principal.Key{}) {
		return key{what: ofServer, server: h.Server}
	}
	return key{what: ofPerson, who: h.Accounts.Root()}
}

// keys returns those of the accounts of the principals and the persons.
func (h *Holder) keys() []key {
	all := h.Accounts.All()
	keys := make([]key, 0, 2*len(all))
	for i := range all {
		if all[i].Principal {
			keys = append(keys, key{what: ofPrincipal, who: all[i].Key})
		}
		if all[i].Person {
			keys = append(keys, key{what: ofPerson, who: all[i].Key})
		}
	}
	return keys
}

// account is one share of the room, and who takes of it. There is one for as long as
// somebody does.
type account struct {
	of    key
	limit int
	// taken are the bytes, and by how many holdings.
	taken, by int
	// waiting are how many of them wait for more.
	waiting int
	// growing are the holdings that are not whole, who began first first.
	growing []*Holding
}

// most is how much may be taken once a holding has more: what is for the one that began
// first nobody else takes.
func (a *account) most(h *Holding, last int) int {
	if len(a.growing) == 0 || a.growing[0] == h {
		return a.limit
	}
	return a.limit - last
}

// isSomebodys reports whether it is a principal's or a person's.
func (a *account) isSomebodys() bool { return a.of.what == ofPrincipal || a.of.what == ofPerson }

// isWaitedFor reports whether an account is somebody's who waits.
func (a *account) isWaitedFor() bool {
	return a.isSomebodys() && a.waiting > 0
}

func byAge(a, b *Holding) int { return cmp.Compare(a.since, b.since) }

// All below need the lock of the room.

// join has a holding take of its accounts, but its server's.
func (r *Room) join(h *Holding) {
	if len(h.accounts) > 0 {
		return
	}
	h.accounts = append(make([]*account, 0, 2+2*len(h.of.Accounts.All())), r.enter(key{}, r.limits.All))
	for _, k := range h.of.keys() {
		limit := r.limits.Person
		if k.what == ofPrincipal {
			limit = r.limits.Principal
		}
		h.accounts = append(h.accounts, r.enter(k, limit))
	}
}

// enter returns an account, of which one holding more takes.
func (r *Room) enter(of key, limit int) *account {
	a := r.accounts[of]
	if a == nil {
		a = &account{of: of, limit: limit}
		r.accounts[of] = a
	}
	a.by++
	return a
}

// leave forgets an account of which nobody takes any more.
func (r *Room) leave(a *account) {
	if a.by--; a.by == 0 {
		delete(r.accounts, a.of)
	}
}

// begin has a holding grow, if it does not: from then on it has its age, and takes of its
// server's account.
func (r *Room) begin(h *Holding) {
	if h.since > 0 {
		return
	}
	r.join(h)
	if h.of.Server != "" {
		a := r.enter(key{what: ofServer, server: h.of.Server}, r.limits.Server)
		a.taken += counted(h.bytes)
		h.accounts = append(h.accounts, a)
	}
	r.begun++
	h.since = r.begun
	for _, a := range h.accounts {
		a.growing = append(a.growing, h)
	}
}

// whole ends a holding's growth. From then on it is its reader's.
func (r *Room) whole(h *Holding) {
	if h.since == 0 {
		return
	}
	for _, a := range h.accounts {
		at, _ := slices.BinarySearchFunc(a.growing, h, byAge)
		a.growing = slices.Delete(a.growing, at, at+1)
	}
	h.since = 0
	if last := len(h.accounts) - 1; h.accounts[last].of.what == ofServer {
		h.accounts[last].taken -= counted(h.bytes)
		r.leave(h.accounts[last])
		h.accounts = h.accounts[:last]
	}
}

// set makes a holding as large as it is now.
func (r *Room) set(h *Holding, bytes int) {
	if counted(bytes) > 0 {
		r.join(h)
	}
	for _, a := range h.accounts {
		a.taken += counted(bytes) - counted(h.bytes)
	}
	h.bytes = bytes
	if counted(bytes) > 0 || h.since > 0 {
		return
	}
	for _, a := range h.accounts {
		r.leave(a)
	}
	h.accounts = nil
}

// settle makes a holding whole and so large, and lets in who waited for that.
func (r *Room) settle(h *Holding, bytes int) {
	before, grew := counted(h.bytes), h.since > 0
	r.whole(h)
	r.set(h, bytes)
	if grew || counted(bytes) < before {
		r.serve()
	}
}

// add makes a holding larger where there is room for it that nobody of its principal or
// persons waits for. Of whom it had the room already it needs none.
func (r *Room) add(h *Holding, bytes int, had []*account) bool {
	if h.closed {
		return false
	}
	more := counted(h.bytes+bytes) - counted(h.bytes)
	if more > 0 {
		r.join(h)
	}
	for _, a := range h.accounts {
		if more > 0 && !slices.Contains(had, a) && (a.taken+more > a.most(h, r.limits.Last) || a.isWaitedFor()) {
			r.set(h, h.bytes)
			return false
		}
	}
	r.set(h, h.bytes+bytes)
	return true
}
