package room_test

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

	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
)

var (
	ana = room.Owner{Tenant: "acme", Subject: "ana"}
	ben = room.Owner{Tenant: "acme", Subject: "ben"}
	cat = room.Owner{Tenant: "acme", Subject: "cat"}
)

const mib = 1 << 20

// newRoom has 4 MiB for each of two.
func newRoom(t *testing.T) *room.Room {
	t.Helper()
	r, err := room.New(4*mib, 8*mib)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestThereIsRoomForSomebody(t *testing.T) {
	t.Parallel()
	for _, sizes := range [][2]int{{0, 0}, {0, mib}, {2 * mib, mib}, {-1, 1}} {
		if r, err := room.New(sizes[0], sizes[1]); err == nil || r != nil {
			t.Errorf("%v was accepted", sizes)
		}
	}
	var none *room.Holding
	none.Keep(0)
	none.Drop(1)
	none.Close()
	if none.Grow(t.Context(), room.Free) != nil || none.Grow(t.Context(), room.Free+1) == nil || none.Add(1) || none.Beside() != nil {
		t.Error("what has no room was given some")
	}
	if r := newRoom(t); r.Open(ana).Give(nil) != true || !errors.Is(r.Open(ana).Grow(t.Context(), 4*mib+1), room.ErrFull) {
		t.Error("nothing is something, or a share has no end")
	}
}

// grown tells whether a holding may grow before the time is up.
func grown(t *testing.T, h *room.Holding, bytes int) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return h.Grow(ctx, bytes) == nil
}

// X3: an owner has its share, and all have the room.
func TestX3SharesEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t)
		first, small := r.Open(ana), r.Open(ana)
		if !grown(t, first, 4*mib) || grown(t, r.Open(ana), mib) || r.Open(ana).Add(mib) {
			t.Error("a share is not its owner's, or has no end")
		}
		if !grown(t, small, room.Free) || !small.Add(room.Free) {
			t.Error("a small answer waits for a large one")
		}
		if !grown(t, r.Open(ben), 4*mib) {
			t.Error("somebody else has no room")
		}
		if grown(t, r.Open(cat), mib) || r.Open(cat).Add(mib) {
			t.Error("all have more than there is")
		}
		first.Keep(mib)
		if !grown(t, r.Open(cat), 3*mib) || grown(t, r.Open(cat), mib) {
			t.Error("what was given back is not there, or more is")
		}
	})
}

// X3: who waits is let in in turn, and a large answer is not passed by for ever.
func TestX3WhoCameFirstIsServedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t)
		first := r.Open(ana)
		if !grown(t, first, 3*mib) {
			t.Fatal("there is no room")
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
			t.Error("somebody passed by who came first")
		}
		first.Close()
		if a, b := <-order, <-order; a != 0 || b != 1 {
			t.Errorf("served as %d, %d", a, b)
		}
	})
}

// X3: nobody is let in while an answer of its own waits for its share; and who waits
// for others' is.
func TestX3NobodyIsLetInWhoseAnswersWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t)
		admitted := func(of room.Owner) bool { return r.Admit(t.Context(), of, time.Second) == nil }
		hold := r.Open(ana)
		if !admitted(ana) || !grown(t, hold, 4*mib) || !admitted(ana) {
			t.Error("a share that is full alone keeps nobody out")
		}
		go func() { _ = r.Open(ana).Grow(t.Context(), mib) }()
		synctest.Wait()
		if admitted(ana) || !admitted(ben) {
			t.Error("who has waiting answers is let in, or somebody else is not")
		}
		if !grown(t, r.Open(ben), 4*mib) {
			t.Error("ben has no room")
		}
		go func() { _ = r.Open(cat).Grow(t.Context(), mib) }()
		synctest.Wait()
		if !admitted(cat) {
			t.Error("cat is kept out for what others hold")
		}
		hold.Close()
		synctest.Wait()
		if !admitted(ana) {
			t.Error("ana is kept out for ever")
		}
	})
}

func TestHoldingsChangeHands(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	line, answer, others := r.Open(ana), r.Open(ana), r.Open(ben)
	if line.Grow(t.Context(), 4*mib) != nil || !line.Give(answer) || line.Grow(expired(), mib) == nil {
		t.Fatal("what was given is counted twice, or not at all")
	}
	answer.Close()
	if line.Grow(t.Context(), 4*mib) != nil || !line.Give(others) || line.Grow(expired(), 4*mib) != nil {
		t.Error("what somebody else was given is still held")
	}
	if line.Give(others) || !r.Open(ana).Add(4*mib) {
		t.Error("a full share was given more, or what nobody has is held")
	}
}

func expired() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// X3: whatever comes and goes, no more is held than there is, and in the end nothing.
func TestX3NothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	var held [2]atomic.Int64
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			who := i % 2
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			for range 300 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(2000))*time.Microsecond)
				h, bytes := r.Open([]room.Owner{ana, ben}[who]), room.Free+1+rng.IntN(4*mib-room.Free)
				if h.Grow(ctx, bytes) == nil {
					if now := held[who].Add(int64(bytes)); now > 4*mib {
						t.Errorf("%d bytes are held", now)
					}
					held[who].Add(-int64(bytes))
				}
				cancel()
				h.Close()
			}
		})
	}
	all.Wait()
	for _, of := range []room.Owner{ana, ben} {
		if err := r.Open(of).Grow(expired(), 4*mib); err != nil {
			t.Errorf("after all %v has no room", of)
		}
	}
}

// X1: what is large is read in turns, of each owner one at a time; what is small waits
// for nobody.
func TestX1WhatIsLargeIsReadInTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t)
		var ends []func()
		for range runtime.GOMAXPROCS(0) { // half of the processors, or one, are taken
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if end, err := r.Open(ana).TurnFor(ctx, room.Free+1); err == nil {
				ends = append(ends, end)
			}
			cancel()
		}
		if most := max(1, runtime.GOMAXPROCS(0)/4); len(ends) != most {
			t.Errorf("one owner reads %d at a time, want %d", len(ends), most)
		}
		small, err := r.Open(ana).TurnFor(t.Context(), room.Free)
		if err != nil {
			t.Fatal(err)
		}
		small()
		for _, end := range ends {
			end()
		}
		end, err := r.Open(ben).TurnFor(t.Context(), room.Free+1)
		if err != nil {
			t.Fatal(err)
		}
		end()
		var none *room.Holding
		if _, err := none.Turn(t.Context()); !errors.Is(err, room.ErrFull) {
			t.Errorf("nobody's turn: %v", err)
		}
	})
}
