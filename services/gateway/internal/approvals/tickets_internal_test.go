package approvals

import (
	"strconv"
	"testing"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// Checks that the number of tickets is limited: the oldest and the expired tickets are removed.
func TestTickets_OldestAndExpiredAreRemoved(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	nth := func(n int) Call {
		return Call{Principal: &identityv1.Principal{Subject: "s" + strconv.Itoa(n%7)}, Params: []byte(`{"n":` + strconv.Itoa(n) + `}`)}
	}
	kept := newTickets()
	for n := range 2 * maxTickets {
		kept.add(nth(n), strconv.Itoa(n), now.Add(time.Minute), now)
	}
	if kept.order.Len() != maxTickets || len(kept.ids) != maxTickets || len(kept.by) != 7 {
		t.Errorf("%d tickets, %d by their approval, of %d callers", kept.order.Len(), len(kept.ids), len(kept.by))
	}
	for n, want := range map[int]string{0: "", maxTickets - 1: "", maxTickets: strconv.Itoa(maxTickets), 2*maxTickets - 1: strconv.Itoa(2*maxTickets - 1)} {
		if got := kept.find(nth(n), now); got != want {
			t.Errorf("call %d: %q, want %q", n, got, want)
		}
	}
	kept.add(nth(0), "again", now.Add(time.Hour), now)
	kept.add(nth(0), "again", now.Add(time.Hour), now)
	kept.add(nth(0), "newer", now.Add(time.Hour), now)
	if got := kept.find(nth(0), now); got != "newer" {
		t.Errorf("the newest approval of a call is %q", got)
	}
	kept.forget("newer")
	kept.forget("nobody")
	kept.add(nth(1), "late", now.Add(time.Hour), now.Add(time.Minute))
	if got := kept.find(nth(0), now.Add(time.Minute)); got != "again" || kept.order.Len() != 2 || len(kept.ids) != 2 || len(kept.by) != 2 {
		t.Errorf("after a minute %q, and %d tickets of %d callers", got, kept.order.Len(), len(kept.by))
	}
	kept.forget("again")
	kept.forget("late")
	if len(kept.by)+len(kept.ids)+kept.order.Len() != 0 {
		t.Errorf("%v is left", kept.by)
	}
}
