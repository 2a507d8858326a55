package wasmagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

func personKey(subject string) principal.Key { return principal.Key{Tenant: "t", Subject: subject} }

// Waiting callers get slots in the order in which they arrived. If a person already has the maximum number of slots,
// that person's callers do not delay other callers. Callers that had a slot before take precedence.
func TestQueue_GrantsSlotsInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(ConcurrencyLimits{Total: 3, PerPerson: 2, MaxQueued: 10, MaxQueuedPerPerson: 5, MaxWait: time.Hour})
		var mu sync.Mutex
		var order []string
		leaves := make(map[string]func())
		leave := func(name string) {
			mu.Lock()
			defer mu.Unlock()
			leaves[name]()
		}
		take := func(person, name string, hadSlot bool) {
			go func() {
				leave, err := q.acquire(t.Context(), personKey(person), hadSlot)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				order, leaves[name] = append(order, name), leave
			}()
			synctest.Wait()
		}
		for _, c := range []struct {
			person, name string
			back         bool
		}{
			{"ana", "a1", false}, {"ana", "a2", false}, {"ana", "a3", false}, {"ben", "b1", false},
			{"ben", "b2", false}, {"eve", "e1", false}, {"ben", "back", true},
		} {
			take(c.person, c.name, c.back)
		}
		for _, name := range []string{"b1", "a1", "a2", "back", "b2"} {
			leave(name)
			leave(name) // leave is idempotent
			synctest.Wait()
		}
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"a1", "a2", "b1", "back", "a3", "b2", "e1"}; !slices.Equal(order, want) {
			t.Errorf("places are given in the order %v, want %v", order, want)
		}
		for _, name := range []string{"a3", "e1"} {
			leaves[name]()
		}
		if q.running != 0 || len(q.persons) != 0 || len(q.waiting) != 0 {
			t.Errorf("after all callers have left, %d work, %d wait, and %d persons are counted", q.running, len(q.waiting), len(q.persons))
		}
	})
}

// If the queue is full, a new caller is refused immediately. A caller that has waited too long is refused too, unless
// it had a slot before. If a waiting caller cancels its request, another caller can take its place in the queue.
func TestQueue_IsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(ConcurrencyLimits{Total: 1, PerPerson: 1, MaxQueued: 3, MaxQueuedPerPerson: 2, MaxWait: time.Minute})
		leave, err := q.acquire(t.Context(), personKey("ana"), false)
		if err != nil {
			t.Fatal(err)
		}
		results := make(chan string, 10)
		wait := func(ctx context.Context, person string, hadSlot bool) {
			go func() {
				leave, err := q.acquire(ctx, personKey(person), hadSlot)
				if err == nil {
					leave()
				}
				results <- fmt.Sprintf("%s %v %v", person, errors.Is(err, errNoSlot), errors.Is(err, context.Canceled))
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		wait(ctx, "ana", false)
		wait(t.Context(), "ana", false)
		for _, person := range []string{"ana", "ana"} {
			if _, err := q.acquire(t.Context(), personKey(person), false); !errors.Is(err, errNoSlot) {
				t.Errorf("a further caller of a person with the maximum of waiting callers: %v", err)
			}
		}
		wait(t.Context(), "ben", false)
		if _, err := q.acquire(t.Context(), personKey("eve"), false); !errors.Is(err, errNoSlot) {
			t.Errorf("a further caller while the queue is full: %v", err)
		}
		wait(t.Context(), "back", true)
		cancel()
		if got := <-results; got != "ana false true" {
			t.Errorf("the caller that gives up: %s", got)
		}
		time.Sleep(2 * time.Minute)
		var late []string
		for range 2 {
			late = append(late, <-results)
		}
		slices.Sort(late)
		if want := []string{"ana true false", "ben true false"}; !slices.Equal(late, want) {
			t.Errorf("after a minute these callers are refused: %v, want %v", late, want)
		}
		leave()
		if got := <-results; got != "back false false" {
			t.Errorf("the caller that had a place: %s", got)
		}
	})
}

// Reserved memory is limited per person and in total. Releasing a reservation a second time has no effect.
func TestMemoryBudget_IsBounded(t *testing.T) {
	t.Parallel()
	r := &memoryBudget{total: 10, perPerson: 6}
	first, ok := r.reserve(personKey("ana"), 6)
	if _, more := r.reserve(personKey("ana"), 1); !ok || more {
		t.Error("a person can reserve more than its bound")
	}
	if _, ok := r.reserve(personKey("ben"), 5); ok {
		t.Error("all persons together can reserve more than the bound")
	}
	first()
	first()
	if _, ok := r.reserve(personKey("ben"), 5); !ok || r.reserved != 5 || len(r.reservedBy) != 1 {
		t.Errorf("at the end %d bytes of %d persons are reserved", r.reserved, len(r.reservedBy))
	}
}
