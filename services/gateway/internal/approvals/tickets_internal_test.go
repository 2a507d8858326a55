package approvals

import (
	"strconv"
	"testing"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

func TestTickets_OldestAndExpiredAreRemoved(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	nth := func(n int) Call {
		return Call{Principal: &identityv1.Principal{Subject: "s" + strconv.Itoa(n%7)}, Params: []byte(`{"n":` + strconv.Itoa(n) + `}`)}
	}
	remembered := newTickets()
	for n := range 2 * maxTickets {
		remembered.add(nth(n), strconv.Itoa(n), now.Add(time.Minute), now)
	}
	if remembered.order.Len() != maxTickets || len(remembered.ids) != maxTickets || len(remembered.by) != 7 {
		t.Errorf("%d tickets, %d by their approval, of %d callers", remembered.order.Len(), len(remembered.ids), len(remembered.by))
	}
	for n, want := range map[int]string{0: "", maxTickets - 1: "", maxTickets: strconv.Itoa(maxTickets), 2*maxTickets - 1: strconv.Itoa(2*maxTickets - 1)} {
		if got := remembered.find(nth(n), now); got != want {
			t.Errorf("call %d: %q, want %q", n, got, want)
		}
	}
	remembered.add(nth(0), "again", now.Add(time.Hour), now)
	remembered.add(nth(0), "again", now.Add(time.Hour), now)
	remembered.add(nth(0), "newer", now.Add(time.Hour), now)
	if got := remembered.find(nth(0), now); got != "newer" {
		t.Errorf("the newest approval of a call is %q", got)
	}
	remembered.forget("newer")
	remembered.forget("nobody")
	remembered.add(nth(1), "late", now.Add(time.Hour), now.Add(time.Minute))
	if got := remembered.find(nth(0), now.Add(time.Minute)); got != "again" || remembered.order.Len() != 2 || len(remembered.ids) != 2 || len(remembered.by) != 2 {
		t.Errorf("after a minute %q, and %d tickets of %d callers", got, remembered.order.Len(), len(remembered.by))
	}
	remembered.forget("again")
	remembered.forget("late")
	if len(remembered.by)+len(remembered.ids)+remembered.order.Len() != 0 {
		t.Errorf("%v is left", remembered.by)
	}
}

// An approval that was requested for one person's call is not found for the same call with the account of another person.
func TestTickets_BelongToThePerson(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	of := func(person string) Call {
		return Call{Principal: &identityv1.Principal{Subject: "bot", Agent: "dev", Person: person}, Params: []byte("{}")}
	}
	remembered := newTickets()
	remembered.add(of("ana"), "a-1", now.Add(time.Minute), now)
	for person, want := range map[string]string{"ana": "a-1", "ben": "", "": ""} {
		if got := remembered.find(of(person), now); got != want {
			t.Errorf("the person %q: %q, want %q", person, got, want)
		}
	}
}
