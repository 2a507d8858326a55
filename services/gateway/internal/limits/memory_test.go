package limits_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const mib = 1 << 20

func newOwner(name string) *limits.Owner {
	return ownerFor(&identityv1.Principal{Tenant: "acme", Subject: name})
}

func ownerFor(p *identityv1.Principal) *limits.Owner {
	return &limits.Owner{Accounts: principal.AccountsOf(p)}
}

func ownerOfPerson(h *limits.Owner, owner string) *limits.Owner {
	who := h.Accounts.Caller()
	return &limits.Owner{Accounts: principal.AccountsOf(&identityv1.Principal{Tenant: who.Tenant, Subject: who.Subject, Owner: owner}), Server: h.Server}
}

// ownerAtServer returns an owner with the accounts of h for answers from the given server.
func ownerAtServer(h *limits.Owner, server string) *limits.Owner {
	return &limits.Owner{Accounts: h.Accounts, Server: server}
}

var (
	ana = newOwner("ana")
	ben = newOwner("ben")
	cat = newOwner("cat")
)

func newBudget(t testing.TB) *limits.Budget {
	return newBudgetWith(t, limits.Quotas{Principal: 4 * mib, Person: 6 * mib, Server: 8 * mib, All: 8 * mib})
}

func newBudgetWith(t testing.TB, l limits.Quotas) *limits.Budget {
	t.Helper()
	r, err := limits.NewBudget(l)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestGrow_OneAnswerAlwaysFits(t *testing.T) {
	t.Parallel()
	for _, l := range []limits.Quotas{
		{}, {Principal: 1, Person: 1, Server: 1}, {Principal: 2, Person: 2, Server: 2, All: 1}, {Principal: 2, Person: 3, Server: 1, All: 2},
		{Principal: -1, Person: 1, Server: 1, All: 1}, {Principal: 1, Person: 1, Server: 1, All: 1, Last: 2}, {Principal: 1, Person: 1, Server: 1, All: 1, Last: -1},
	} {
		if r, err := limits.NewBudget(l); err == nil || r != nil {
			t.Errorf("%+v was accepted", l)
		}
	}
	for _, l := range []limits.Quotas{limits.AnswerQuotas(), limits.BodyQuotas()} {
		newBudgetWith(t, l)
	}
	var none *limits.Memory
	none.Settle(0)
	none.Drop(1)
	none.Close()
	if none.Grow(t.Context(), limits.UncountedBytes) != nil || none.Grow(t.Context(), limits.UncountedBytes+1) == nil || none.Add(1) || none.Sibling() != nil {
		t.Error("a nil holding got memory")
	}
	if r := newBudget(t); r.Open(ana).Transfer(nil) != true || !errors.Is(r.Open(ana).Grow(t.Context(), 4*mib+1), limits.ErrMemory) {
		t.Error("an empty holding has memory, or a quota has no limit")
	}
	if r := newBudgetWith(t, limits.AnswerQuotas()); !errors.Is(r.Open(ana).Grow(t.Context(), limits.ReserveBytes+1), limits.ErrMemory) {
		t.Error("a holding may grow larger than the reserve")
	}
}

func canGrow(t *testing.T, h *limits.Memory, bytes int) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return h.Grow(ctx, bytes) == nil
}

// Case X3. The budget grants memory in the order in which it was requested, so that small answers do not delay a large
// answer forever.
func TestGrow_GrantsInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newBudget(t)
		first := r.Open(ana)
		if !canGrow(t, first, 3*mib) {
			t.Fatal("the budget is too small")
		}
		order := make(chan int, 2)
		for i, bytes := range []int{4 * mib, mib} {
			go func() {
				h := r.Open(ana)
				defer h.Close()
				if h.Grow(t.Context(), bytes) == nil {
					order <- i
				}
			}()
			synctest.Wait()
		}
		if len(order) != 0 || r.Open(ana).Add(mib) {
			t.Error("a later waiter overtook the first one")
		}
		first.Close()
		if a, b := <-order, <-order; a != 0 || b != 1 {
			t.Errorf("served as %d, %d", a, b)
		}
	})
}

// Case X3. Several Memories have received a part of their bytes and wait for more. A part of each quota is reserved for
// the Memory that began to grow first. Once this Memory is complete, the part is reserved for the next one, so all
// Memories become complete.
func TestGrow_FirstAnswerBecomesComplete(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newBudgetWith(t, limits.Quotas{Principal: 4 * mib, Person: 4 * mib, Server: 4 * mib, All: 4 * mib, Last: 2 * mib})
		var all [3]*limits.Memory
		for i := range all {
			if all[i] = r.Open(ana); canGrow(t, all[i], mib) != (i < 2) {
				t.Fatalf("the reserve is not only for the first, or too small: at holding %d", i+1)
			}
		}
		if canGrow(t, all[1], 2*mib) || all[2].Sibling().Add(mib) {
			t.Error("a later one took the reserve of the first")
		}
		if !canGrow(t, all[0], 2*mib) {
			t.Error("the first gets no memory")
		}
		later := make(chan bool)
		go func() { later <- all[1].Grow(t.Context(), 2*mib) == nil }()
		synctest.Wait()
		all[0].Settle(2 * mib)
		all[0].Close()
		if !<-later {
			t.Error("the next one gets no memory")
		}
	})
}

// Case X3. All answers become complete, regardless of their order and the steps in which they grow.
func TestGrow_AllAnswersBecomeComplete(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		answers := rapid.SliceOfN(rapid.Custom(drawAnswer), 1, 40).Draw(rt, "answers")
		synctest.Test(t, func(t *testing.T) {
			r := newBudgetWith(t, limits.Quotas{Principal: 4 * mib, Person: 6 * mib, Server: 5 * mib, All: 8 * mib, Last: 2 * mib})
			var growing sync.WaitGroup
			var late atomic.Int32
			for _, a := range answers {
				growing.Go(func() {
					if !a.completes(t.Context(), r) {
						late.Add(1)
					}
				})
			}
			growing.Wait()
			if n := late.Load(); n > 0 {
				rt.Errorf("%d wait forever", n)
			}
			if !r.Open(ana).Add(4*mib) || !r.Open(ben).Add(4*mib) {
				rt.Error("memory is missing after all have ended")
			}
		})
	})
}

// arrivingAnswer describes an answer that arrives in steps. begins, pause and read are times in seconds.
type arrivingAnswer struct {
	of                  *limits.Owner
	size, step          int
	begins, pause, read int
}

func drawAnswer(rt *rapid.T) arrivingAnswer {
	of := ownerOfPerson(newOwner(rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "principal")), rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "person"))
	return arrivingAnswer{
		of:   ownerAtServer(of, rapid.SampledFrom([]string{"one", "two"}).Draw(rt, "server")),
		size: rapid.IntRange(limits.UncountedBytes, 2*mib).Draw(rt, "size"), step: rapid.IntRange(limits.UncountedBytes, mib).Draw(rt, "step"),
		begins: rapid.IntRange(0, 5).Draw(rt, "begins"), pause: rapid.IntRange(0, 5).Draw(rt, "pause"), read: rapid.IntRange(0, 5).Draw(rt, "read"),
	}
}

// completes grows a Memory as the answer arrives, and reports whether the answer is complete within an hour.
func (a arrivingAnswer) completes(ctx context.Context, r *limits.Budget) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	time.Sleep(time.Duration(a.begins) * time.Second)
	h := r.Open(a.of)
	defer h.Close()
	for size := a.step; ; size += a.step {
		if h.Grow(ctx, min(size, a.size)) != nil {
			return false
		}
		if size >= a.size {
			break
		}
		time.Sleep(time.Duration(a.pause) * time.Second)
	}
	h.Settle(a.size)
	time.Sleep(time.Duration(a.read) * time.Second)
	return true
}

// Case X3. A caller is not admitted while an answer to the caller waits for the principal's quota, or while an answer
// to another principal of the same person waits for the person's quota. Answers to other persons' principals have no
// effect.
func TestAdmit_WaitsWhileAnswersWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newBudget(t)
		admitted := func(of *limits.Owner) bool { return r.Admit(t.Context(), of, time.Second) == nil }
		hold := r.Open(ana)
		if !admitted(ana) || !canGrow(t, hold, 4*mib) || !admitted(ana) {
			t.Error("a full quota must not prevent admission")
		}
		go func() { _ = r.Open(ana).Grow(t.Context(), mib) }()
		synctest.Wait()
		agent := ownerOfPerson(newOwner("agent"), "ana")
		if admitted(ana) || !admitted(ben) || !admitted(agent) {
			t.Error("a caller with waiting answers is admitted, or another one is not")
		}
		if !canGrow(t, r.Open(agent), 2*mib) {
			t.Error("the agent gets no memory")
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = r.Open(agent).Grow(ctx, mib) }()
		synctest.Wait()
		if admitted(agent) || admitted(ownerOfPerson(newOwner("another"), "ana")) || !admitted(ben) {
			t.Error("an agent of a person with waiting answers is admitted, or another principal is not")
		}
		cancel()
		if !canGrow(t, r.Open(ben), 2*mib) {
			t.Error("ben gets no memory")
		}
		go func() { _ = r.Open(cat).Grow(t.Context(), mib) }()
		synctest.Wait()
		if !admitted(cat) {
			t.Error("cat is not admitted because of others' memory")
		}
		hold.Close()
		synctest.Wait()
		if !admitted(ana) {
			t.Error("ana is never admitted")
		}
	})
}

func TestTransfer_MovesBytes(t *testing.T) {
	t.Parallel()
	r := newBudget(t)
	line, answer, others := r.Open(ana), r.Open(ana), r.Open(ben)
	if line.Grow(t.Context(), 4*mib) != nil || !line.Transfer(answer) || line.Grow(expired(), mib) == nil {
		t.Fatal("moved memory is counted twice, or not at all")
	}
	answer.Close()
	if line.Grow(t.Context(), 4*mib) != nil || !line.Transfer(others) || line.Grow(expired(), 4*mib) != nil {
		t.Error("moved memory still counts for its former holder")
	}
	if line.Transfer(others) || !r.Open(ana).Add(4*mib) {
		t.Error("a full quota got more, or unused memory is counted")
	}
}

// A Memory transfers its bytes to another Memory of the same owner while a third Memory waits for the quota. The
// transfer succeeds, because it needs no additional bytes.
func TestTransfer_MovesBytesThatAreThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newBudgetWith(t, limits.Quotas{Principal: 4 * mib, Person: 4 * mib, Server: 4 * mib, All: 4 * mib, Last: 2 * mib})
		line, answer, next := r.Open(ana), r.Open(ana), r.Open(ana)
		if !r.Open(ana).Add(2*mib) || !canGrow(t, line, 2*mib) {
			t.Fatal("the budget is too small")
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = next.Grow(ctx, mib) }()
		synctest.Wait()
		if !line.Transfer(answer) {
			t.Error("held memory was lost")
		}
		cancel()
	})
}

func expired() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// Case X3. Goroutines perform random operations on a budget. The budget must never be exceeded. After all Memories are
// closed, the budget must have no accounts left.
func TestClose_LeavesNoAccounts(t *testing.T) {
	t.Parallel()
	r := newBudget(t)
	var held [2]atomic.Int64
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			who := i % 2
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			for range 300 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(2000))*time.Microsecond)
				h, bytes := r.Open([]*limits.Owner{ownerAtServer(ana, "s"), ownerAtServer(ben, "s")}[who]), limits.UncountedBytes+1+rng.IntN(4*mib-limits.UncountedBytes)
				if h.Grow(ctx, bytes) == nil {
					if now := held[who].Add(int64(bytes)); now > 4*mib {
						t.Errorf("%d bytes are held", now)
					}
					held[who].Add(-int64(bytes))
				}
				if rng.IntN(2) == 0 {
					h.Settle(bytes / 2)
				}
				cancel()
				h.Close()
			}
		})
	}
	all.Wait()
	for _, of := range []*limits.Owner{ownerAtServer(ana, "s"), ownerAtServer(ben, "s")} {
		if err := r.Open(of).Grow(expired(), 4*mib); err != nil {
			t.Errorf("after all have ended, %v gets no memory", of)
		}
	}
}

// Case X1. Large messages are parsed in time slices. The number of time slices that one principal may use at a time is
// limited. Small messages need no time slices.
func TestTimeslice_LargeMessagesTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newBudget(t)
		var ends []func()
		for range runtime.GOMAXPROCS(0) { // one principal may use a quarter of the processors, but at least one
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if end, err := r.Open(ana).TimesliceFor(ctx, limits.UncountedBytes+1); err == nil {
				ends = append(ends, end)
			}
			cancel()
		}
		if most := max(1, runtime.GOMAXPROCS(0)/4); len(ends) != most {
			t.Errorf("one principal reads %d at a time, want %d", len(ends), most)
		}
		small, err := r.Open(ana).TimesliceFor(t.Context(), limits.UncountedBytes)
		if err != nil {
			t.Fatal(err)
		}
		small()
		for _, end := range ends {
			end()
		}
		end, err := r.Open(ben).TimesliceFor(t.Context(), limits.UncountedBytes+1)
		if err != nil {
			t.Fatal(err)
		}
		end()
		var none *limits.Memory
		if _, err := none.Timeslice(t.Context()); !errors.Is(err, limits.ErrMemory) {
			t.Errorf("a slot for a nil holding: %v", err)
		}
	})
}

// Case X3. A request that waits for admission does not count against its server's quota. Other answers from that server
// can use the whole quota.
func TestAdmission_QueuedCallerHoldsNoServerMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newBudgetWith(t, limits.Quotas{Principal: 8 * mib, Person: 8 * mib, Server: 4 * mib, All: 32 * mib, Last: 4 * mib})
		var full []*limits.Memory
		for range 2 { // the second request waits
			h := r.Open(ownerAtServer(ana, "other"))
			full = append(full, h)
			go func() { _ = h.Grow(t.Context(), 4*mib) }()
			synctest.Wait()
		}
		go func() { _ = r.Admit(t.Context(), ownerAtServer(ana, "s"), time.Hour) }()
		synctest.Wait()
		if err := r.Open(ownerAtServer(ben, "s")).Grow(expired(), 2*mib); err != nil {
			t.Error("ben has to wait for a request of ana's that has not been admitted")
		}
		for _, h := range full {
			h.Close()
		}
		synctest.Wait()
	})
}

// BenchmarkSmall measures the handling of small Memories, which are the most frequent ones.
func BenchmarkSmall(b *testing.B) {
	r := newBudgetWith(b, limits.AnswerQuotas())
	b.ReportAllocs()
	for b.Loop() {
		h := r.Open(ana)
		if err := h.Grow(b.Context(), 512); err != nil {
			b.Fatal(err)
		}
		h.Settle(512)
		h.Close()
	}
}

// Case X3. A goroutine that receives a server's answer may try to enlarge the call's Memory while the call ends. The
// closed Memory must not grow, because its bytes would never be released.
func TestClose_ClosedMemoryTakesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newBudget(t)
		closed, other := r.Open(ana), r.Open(ben)
		closed.Close()
		if closed.Add(1) || closed.Add(mib) {
			t.Error("it took more")
		}
		if err := closed.Grow(t.Context(), mib); !errors.Is(err, limits.ErrMemory) {
			t.Errorf("it grew: %v", err)
		}
		if err := other.Grow(t.Context(), mib); err != nil || other.Transfer(closed) {
			t.Errorf("it got another holding's memory, %v", err)
		}
		full, waits := r.Open(ana), r.Open(ana)
		if err := full.Grow(t.Context(), 4*mib); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- waits.Grow(t.Context(), mib) }()
		synctest.Wait()
		waits.Close()
		if err := <-done; !errors.Is(err, limits.ErrMemory) {
			t.Errorf("it waited, and was closed: %v", err)
		}
		full.Close()
		for _, of := range []*limits.Owner{ana, ben} {
			if !r.Open(of).Add(4 * mib) {
				t.Errorf("%v gets no memory, although all is free", of)
			}
		}
	})
}
