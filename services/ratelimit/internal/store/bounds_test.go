package store_test

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/ratelimit/internal/store"
)

func wantSize(t *testing.T, m *store.Memory, buckets, reservations int) {
	t.Helper()
	if got, want := m.Size(), (store.Bounds{Buckets: buckets, Reservations: reservations}); got != want {
		t.Errorf("size %+v, want %+v", got, want)
	}
}

func TestNewMemory_FailsWithoutCapacity(t *testing.T) {
	t.Parallel()
	for _, most := range []store.Bounds{{}, {Buckets: 1}, {Reservations: 1}, {Buckets: -1, Reservations: 1}} {
		if _, err := store.NewMemory(most); err == nil {
			t.Errorf("%+v is accepted as a capacity", most)
		}
	}
}

func TestReserve_FullStoreRefusesOnlyNewBuckets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, store.Bounds{Buckets: 100, Reservations: 1000})
		for i := range 99 {
			mustReserve(t, m, true, fmt.Sprint("k", i), limitPerMinute(fmt.Sprint("b", i), 2))
		}
		// There is no capacity for two more buckets. No units are taken, not even from the existing bucket.
		_, err := reserve(t, m, "two", limitPerMinute("b0", 2), limitPerMinute("x", 2), limitPerMinute("y", 2))
		if !errors.Is(err, store.ErrFull) {
			t.Fatalf("two more: %v", err)
		}
		wantSize(t, m, 99, 99)
		mustReserve(t, m, true, "one", limitPerMinute("x", 2))
		if _, err = reserve(t, m, "another", limitPerMinute("y", 2)); !errors.Is(err, store.ErrFull) {
			t.Errorf("another: %v", err)
		}
		mustReserve(t, m, true, "old", limitPerMinute("b0", 2))
		mustReserve(t, m, false, "older", limitPerMinute("b0", 2))
		mustReserve(t, m, true, "k7", limitPerMinute("b7", 2)) // a repeated request
		if left, err := m.Peek(t.Context(), []store.Limit{limitPerMinute("y", 2), limitPerMinute("b7", 2)}); err != nil || left[0] != 2 || left[1] != 1 {
			t.Errorf("Peek: %v %v", left, err)
		}

		time.Sleep(time.Minute + 1)
		for i := range 100 {
			mustReserve(t, m, true, fmt.Sprint("later", i), limitPerMinute(fmt.Sprint("later", i), 2))
		}
		if got := m.Size().Buckets; got != 100 {
			t.Errorf("%d buckets, want 100", got)
		}
	})
}

// Case R3. TestReserve_OwnerFillsOnlyItsQuota checks that an owner that uses many bucket names uses up only its own
// quota.
func TestReserve_OwnerFillsOnlyItsQuota(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const share = 5
		m := newMemory(t, store.Bounds{Buckets: 100, Reservations: 1000})
		invent := func(owner string, from, n int) {
			t.Helper()
			for i := range n {
				name := fmt.Sprint(owner, from+i)
				result, err := reserveFor(t, m, owner, name, limitPerMinute(name, 2))
				if err != nil || !result.Granted {
					t.Fatalf("bucket %s: %+v, %v", name, result, err)
				}
			}
		}
		full := func(owner string, limits ...store.Limit) {
			t.Helper()
			size := m.Size()
			_, err := reserveFor(t, m, owner, "more", limits...)
			if !errors.Is(err, store.ErrFull) || !strings.Contains(err.Error(), strconv.Quote(owner)) {
				t.Errorf("more buckets of %s: %v", owner, err)
			}
			wantSize(t, m, size.Buckets, size.Reservations)
		}
		invent("eve", 0, share)
		full("eve", limitPerMinute("more", 2))
		invent("ana", 0, share-1)
		full("ana", limitPerMinute("more", 2), limitPerMinute("and more", 2)) // only one of the two buckets would fit
		invent("ana", share-1, 1)

		// Every owner can use existing buckets, even those that another owner created.
		if result, err := reserveFor(t, m, "eve", "old", limitPerMinute("eve0", 2), limitPerMinute("ana0", 2)); err != nil || !result.Granted {
			t.Errorf("old buckets: %+v, %v", result, err)
		}
		// A bucket does not count against its owner's quota if its units were returned, if it was reset, or if it has
		// become empty.
		if err := m.Reset(t.Context(), "eve1"); err != nil {
			t.Fatal(err)
		}
		result, err := reserveFor(t, m, "eve", "x", limitPerMinute("x", 2))
		if err != nil {
			t.Fatal(err)
		}
		full("eve", limitPerMinute("more", 2))
		if _, err := m.Settle(t.Context(), result.Reservation.ID, store.NeverSent); err != nil {
			t.Fatal(err)
		}
		invent("eve", share, 1)
		full("eve", limitPerMinute("more", 2))
		time.Sleep(time.Minute + 1)
		invent("eve", 2*share, share)
		full("eve", limitPerMinute("more", 2))
	})
}

// TestOwners_AreRemovedWithTheirLastBucket checks that owners without buckets are not stored.
func TestOwners_AreRemovedWithTheirLastBucket(t *testing.T) {
	t.Parallel()
	m := newMemory(t, largeBounds)
	for i := range 100 {
		result := mustReserve(t, m, true, fmt.Sprint(i), limitPerMinute("b", 1), limitPerMinute("c", 1))
		if got := m.Owners(); got != 1 {
			t.Fatalf("%d owners are stored, want 1", got)
		}
		if _, err := m.Settle(t.Context(), result.Reservation.ID, store.NeverSent); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.Owners(); got != 0 {
		t.Errorf("%d owners are stored, want 0", got)
	}
}

func TestReserve_FullStoreRefusesNewReservations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, store.Bounds{Buckets: 10, Reservations: 3})
		l := limitPerMinute("b", 1000)
		first := mustReserve(t, m, true, "0", l)
		mustReserve(t, m, true, "1", l)
		mustReserve(t, m, true, "2", l)
		if _, err := reserve(t, m, "3", l, limitPerMinute("c", 1)); !errors.Is(err, store.ErrFull) {
			t.Errorf("a fourth reservation: %v", err)
		}
		wantSize(t, m, 1, 3)
		mustReserve(t, m, true, "0", l) // a repeated request
		if _, err := m.Settle(t.Context(), first.Reservation.ID, store.Sent); err != nil {
			t.Fatal(err)
		}
		mustReserve(t, m, true, "3", l)
		time.Sleep(10 * time.Minute)
		for i := range 3 {
			mustReserve(t, m, true, fmt.Sprint("later", i), l)
		}
	})
}

func TestReserve_RemovesEmptyBucketsAndExpiredReservations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, largeBounds)
		for round := range 5 {
			for i := range 5_000 {
				key := fmt.Sprint(round, "/", i)
				mustReserve(t, m, true, key, limitPerMinute(key, 10))
			}
			time.Sleep(20 * time.Minute)
		}
		// Each new reservation has removed up to two empty buckets and two expired reservations from the previous
		// round.
		if got := m.Size(); got.Buckets > 5_500 || got.Reservations > 5_500 {
			t.Errorf("%+v are stored, want about 5000", got)
		}
	})
}

func TestReserve_DoesNotRemoveBucketsInUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, largeBounds)
		hour := store.Limit{Bucket: "b", Max: 60, Window: time.Hour, Cost: 1}
		for i := range 60 {
			mustReserve(t, m, true, fmt.Sprint("k", i), hour)
			for j := range 100 { // in all shards, other buckets are added and removed
				mustReserve(t, m, true, fmt.Sprint(i, "/", j), limitPerMinute(fmt.Sprint(i, "/", j), 1))
			}
			time.Sleep(time.Minute)
		}
		mustReserve(t, m, false, "edge", hour)
		time.Sleep(time.Nanosecond)
		mustReserve(t, m, true, "past", hour)
	})
}

func TestMemory_RemovesBucketsWhenGivenBackOrReset(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, largeBounds)
		for i := range 1000 {
			result := mustReserve(t, m, true, "k", limitPerMinute(fmt.Sprint("a", i), 1), limitPerMinute(fmt.Sprint("b", i), 1))
			if _, err := m.Settle(t.Context(), result.Reservation.ID, store.NeverSent); err != nil {
				t.Fatal(err)
			}
		}
		wantSize(t, m, 0, 0)
		mustReserve(t, m, true, "k", limitPerMinute("a", 1))
		if err := m.Reset(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		wantSize(t, m, 0, 1)
		mustReserve(t, m, false, "never", store.Limit{Bucket: "c", Max: 1, Window: time.Minute, Cost: 2})
		wantSize(t, m, 0, 1)
	})
}

func TestMemory_RemovalFreesMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("fills tens of megabytes")
	}
	const keys = 50_000
	m := newMemory(t, largeBounds)
	before := heap()
	for i := range keys {
		key := fmt.Sprintf("bucket/%032d", i)
		result := mustReserve(t, m, true, key, store.Limit{Bucket: key, Max: 10, Window: 366 * 24 * time.Hour, Cost: 1})
		if i%2 == 0 {
			if _, err := m.Settle(t.Context(), result.Reservation.ID, store.Sent); err != nil {
				t.Fatal(err)
			}
		}
	}
	full := heap() - before
	m.Jump(2 * 366 * 24 * time.Hour)
	for i := range 5_000 { // enough requests to remove the unused buckets in all shards
		key := fmt.Sprint("later", i%500)
		for range 5 {
			if _, err := reserve(t, m, key, limitPerMinute(key, 1000), limitPerMinute(key+"'", 1000)); err != nil {
				t.Fatal(err)
			}
		}
	}
	after := heap() - before
	t.Logf("%d buckets, half of them with a reservation: %d MB full, %d MB after", keys, full>>20, after>>20)
	if got := m.Size(); got.Buckets > keys/10 || got.Reservations > keys/10 {
		t.Errorf("%+v are stored", got)
	}
	// The maps still use memory for all removed buckets and reservations, because Go's maps do not shrink.
	if after > full*2/5 {
		t.Errorf("%d of %d bytes are still held", after, full)
	}
	runtime.KeepAlive(m)
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}
