package rpc

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	meshv1 "github.com/sluice-mesh/sluice/gen/sluice/mesh/v1"
)

// Case X2. The queue of calls is limited. Calls whose callers are no longer waiting are not sent.
func TestBatches_DropsCallsWithoutWaitingCaller(t *testing.T) {
	t.Parallel()
	l := &clientStream{waiting: newBatches[*meshv1.CarriedCall](), open: map[uint64]waiter{
		1: {deadline: time.Now().Add(time.Hour)}, 2: {deadline: time.Now().Add(-time.Millisecond)}, 4: {deadline: time.Now().Add(time.Minute)},
	}}
	var sent []uint64
	for _, call := range l.removeExpired([]*meshv1.CarriedCall{{Id: 1}, {Id: 2}, {Id: 3}, {Id: 3, GivenUp: true}, {Id: 4}}) {
		sent = append(sent, call.GetId())
		if left := call.GetTimeoutMs(); !call.GetGivenUp() && (left == 0 || left > 300_000) {
			t.Errorf("call %d has %d ms", call.GetId(), left)
		}
	}
	if diff := cmp.Diff([]uint64{1, 3, 4}, sent); diff != "" {
		t.Error(diff)
	}
	for range maxCarried {
		if !l.waiting.add(new(meshv1.CarriedCall)) {
			t.Fatal("fewer calls may wait")
		}
	}
	if l.waiting.add(new(meshv1.CarriedCall)) {
		t.Error("more calls may wait")
	}
	taken := 0
	for batch := l.waiting.take(); ; batch = l.waiting.take() {
		if taken += len(batch); len(batch) != maxBatch {
			t.Errorf("%d calls travel together", len(batch))
		}
		if taken == maxCarried {
			break
		}
	}
	l.waiting.close()
	if batch := l.waiting.take(); len(batch) != 0 || l.waiting.add(new(meshv1.CarriedCall)) {
		t.Error("what is closed is used")
	}
}
