package storetest

import (
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/ratelimit/internal/store"
)

// reservationCases test what happens to reservations after they have been granted.
var reservationCases = []testCase{
	{name: "a repeat returns the same reservation and takes nothing", run: func(f *fixture) {
		a, b := limitOf("a", 3, long), limitOf("b", 1, long)
		first := f.reserveAs("k", a, b)
		f.granted(a)
		repeat := f.reserveAs("k", a, b)
		if !repeat.Granted || repeat.Reservation != first.Reservation {
			f.Errorf("reservation %+v, first %+v", repeat.Reservation, first.Reservation)
		}
		if repeat.Remaining[0] != 1 || repeat.Remaining[1] != 0 || repeat.Limit != 1 {
			f.Errorf("remaining units: %v, tightest %d", repeat.Remaining, repeat.Limit)
		}
		f.wantRemaining(1, a)
	}},
	{name: "a key that was granted is refused for other limits", run: func(f *fixture) {
		a, b := limitOf("a", 5, long), limitOf("b", 5, long)
		f.reserveAs("k", a, b)
		for name, limits := range map[string][]store.Limit{
			"fewer":         {a},
			"more":          {a, b, limitOf("c", 5, long)},
			"others":        {a, limitOf("c", 5, long)},
			"another order": {b, a},
			"another cost":  {a, withCost(2, b)},
			"another max":   {a, limitOf("b", 6, long)},
		} {
			result, err := f.store.Reserve(f.Context(), store.ReserveRequest{Key: "k", Limits: limits, Lifetime: time.Minute})
			f.fails(name, err, store.ErrReused)
			if result.Granted {
				f.Errorf("%s: granted", name)
			}
		}
		f.wantRemaining(4, a, b)
		f.wantRemaining(5, limitOf("c", 5, long))
	}},
	{name: "a refusal is not remembered", run: func(f *fixture) {
		l := limitOf("b", 1, long)
		grant := f.granted(l)
		if f.reserveAs("k", l).Granted {
			f.Error("a full bucket grants")
		}
		f.settle(grant.Reservation.ID, store.NeverSent, true)
		if !f.reserveAs("k", l).Granted {
			f.Error("a refused key stays refused")
		}
	}},
	{name: "a settled key is new again", run: func(f *fixture) {
		l := limitOf("b", 3, long)
		for i, outcome := range []store.Outcome{store.Sent, store.NeverSent} {
			first := f.reserveAs("k", l)
			f.settle(first.Reservation.ID, outcome, true)
			repeat := f.reserveAs("k", l)
			if repeat.Reservation.ID == first.Reservation.ID {
				f.Errorf("%d: the same reservation was given out twice", i)
			}
			f.settle(first.Reservation.ID, store.NeverSent, false)
			f.settle(repeat.Reservation.ID, store.Sent, true)
		}
		f.wantRemaining(0, l)
	}},
	{name: "R2: the units of a sent call are spent", run: func(f *fixture) {
		l := limitOf("b", 1, long)
		grant := f.granted(l)
		f.settle(grant.Reservation.ID, store.Sent, true)
		f.refused(l)
		f.settle(grant.Reservation.ID, store.NeverSent, false)
		f.refused(l)
	}},
	{name: "the units of a call that was never sent are returned, exactly and once", run: func(f *fixture) {
		a, b := limitOf("a", 10, long), limitOf("b", 1000, long)
		f.granted(withCost(3, a), withCost(300, b))
		grant := f.granted(withCost(4, a), withCost(400, b))
		f.granted(withCost(2, a), withCost(200, b))
		f.settle(grant.Reservation.ID, store.NeverSent, true)
		f.wantRemaining(5, a)
		f.wantRemaining(500, b)
		f.settle(grant.Reservation.ID, store.NeverSent, false)
		f.settle(grant.Reservation.ID, store.Sent, false)
		f.wantRemaining(5, a)
	}},
	{name: "the returned units are those of the reservation's time and no other", exact: true, run: func(f *fixture) {
		l := limitOf("b", 3, time.Minute)
		var reservations []string
		for range 3 {
			reservations = append(reservations, f.granted(l).Reservation.ID)
			f.Sleep(10 * time.Second)
		}
		// Units were taken at 0, 10 and 20 s, and now it is 30 s. The second unit is returned, so the first unit is the next
		// to stop counting, at 60 s.
		f.settle(reservations[1], store.NeverSent, true)
		f.granted(l)
		if got, want := f.refused(l).RetryAfter, 30*time.Second+time.Millisecond; got != want {
			f.Errorf("retry after %v, want %v", got, want)
		}
	}},
	{name: "a late settle as never sent does not return units twice", run: func(f *fixture) {
		l := limitOf("b", 1, short)
		grant := f.granted(l)
		f.Sleep(short + short/2)
		f.granted(l) // the first unit no longer counts
		f.settle(grant.Reservation.ID, store.NeverSent, true)
		f.refused(l)
	}},
	{name: "a reservation from before a reset returns nothing", run: func(f *fixture) {
		l, large := limitOf("b", 2, long), limitOf("large", 2000, long)
		grant := f.granted(l, withCost(1000, large))
		for _, name := range []string{"b", "large"} {
			if err := f.store.Reset(f.Context(), name); err != nil {
				f.Fatal(err)
			}
		}
		f.granted(withCost(2, l), withCost(2000, large))
		f.settle(grant.Reservation.ID, store.NeverSent, true)
		f.wantRemaining(0, l, large)
	}},
	{name: "a reservation that is not settled expires, and its units are spent", run: func(f *fixture) {
		l := limitOf("b", 1, long)
		r := store.ReserveRequest{Key: "k", Limits: []store.Limit{l}, Lifetime: time.Second}
		grant, err := f.store.Reserve(f.Context(), r)
		if err != nil || !grant.Granted {
			f.Fatalf("%+v %v", grant, err)
		}
		if lives := grant.Reservation.Expires.Sub(grant.Reservation.Granted); lives != time.Second {
			f.Errorf("it is to live for %v", lives)
		}
		f.Sleep(time.Second + f.Tick)
		f.settle(grant.Reservation.ID, store.NeverSent, false)
		if result, err := f.store.Reserve(f.Context(), r); result.Granted || err != nil {
			f.Errorf("its key is still accepted: %+v %v", result, err)
		}
		f.wantRemaining(0, l)
	}},
	{name: "a renewed reservation is extended", run: func(f *fixture) {
		l := limitOf("b", 1, long)
		r := store.ReserveRequest{Key: "k", Limits: []store.Limit{l}, Lifetime: time.Second}
		grant, err := f.store.Reserve(f.Context(), r)
		if err != nil {
			f.Fatal(err)
		}
		expires := grant.Reservation.Expires
		for range 3 {
			f.Sleep(700 * time.Millisecond)
			later, err := f.store.Renew(f.Context(), grant.Reservation.ID, time.Second)
			if err != nil || !later.After(expires) {
				f.Fatalf("Renew: %v %v", later, err)
			}
			expires = later
		}
		same, err := f.store.Renew(f.Context(), grant.Reservation.ID, time.Millisecond)
		if err != nil || !same.Equal(expires) {
			f.Errorf("a short Renew makes %v of %v: %v", same, expires, err)
		}
		if repeat := f.reserveAs("k", l); repeat.Reservation.ID != grant.Reservation.ID || !repeat.Reservation.Expires.Equal(expires) {
			f.Errorf("a repeat returns %+v, want an end at %v", repeat.Reservation, expires)
		}
		f.settle(grant.Reservation.ID, store.NeverSent, true)
		f.wantRemaining(1, l)
	}},
	{name: "a reservation that has ended is not renewed", run: func(f *fixture) {
		l := limitOf("b", 5, long)
		settled := f.granted(l).Reservation.ID
		f.settle(settled, store.Sent, true)
		expired, err := f.store.Reserve(f.Context(), store.ReserveRequest{Key: "k", Limits: []store.Limit{l}, Lifetime: time.Second})
		if err != nil {
			f.Fatal(err)
		}
		f.Sleep(time.Second + f.Tick)
		for name, id := range map[string]string{"settled": settled, "expired": expired.Reservation.ID, "unknown": "x", "empty": ""} {
			_, err := f.store.Renew(f.Context(), id, time.Minute)
			f.fails(name, err, store.ErrNotFound)
		}
		_, err = f.store.Renew(f.Context(), f.granted(l).Reservation.ID, 0)
		f.fails("for no time", err, store.ErrInvalid)
	}},
	{name: "a reservation that does not exist is not settled", run: func(f *fixture) {
		l := limitOf("b", 5, long)
		id := f.granted(l).Reservation.ID
		for _, wrong := range []string{
			"", "x", id + "0", id + " ", " " + id, id[:len(id)-1], "0" + id, id + "\x00", strings.Repeat("z", 128),
			strings.Replace(id, "-", "-0", 1), strings.Replace(id, "-", "-+", 1),
		} {
			if wrong != id {
				f.settle(wrong, store.NeverSent, false)
			}
		}
		if _, err := f.store.Settle(f.Context(), id, 0); err == nil {
			f.Error("the zero outcome settles")
		} else {
			f.fails("the zero outcome", err, store.ErrInvalid)
		}
		f.settle(id, store.NeverSent, true)
		f.wantRemaining(5, l)
	}},
}
