package storetest

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/sluice-mesh/sluice/services/ratelimit/internal/store"
)

var linearCases = []testCase{
	{name: "parallel histories are linearizable", run: func(f *fixture) {
		for round := range uint64(20) {
			history := f.record(round)
			if result := porcupine.CheckOperationsTimeout(counters, history, 20*time.Second); result != porcupine.Ok {
				f.Fatalf("round %d: %d operations: %s", round, len(history), result)
			}
		}
	}},
}

const (
	linearClients = 8
	linearSteps   = 60
)

// linearMax contains the maximum of each of the two buckets.
var linearMax = counts{9, 14}

// counts contains a number for each of the two buckets. The state of the sequential model is the number of taken units
// in each bucket. No time passes in the recorded histories.
type counts [2]int64

// An operation is the input of one step. It takes units, returns units, or only reads.
type operation struct {
	kind string // "reserve", "return", "peek"
	cost counts // 0 if the operation does not use the bucket
}

// A result is the result of an operation on the store.
type result struct {
	granted   bool // for "return": true if this operation settled the reservation
	remaining counts
}

// counters is the sequential model of two buckets.
var counters = porcupine.Model{
	Init: func() any { return counts{} },
	Step: func(state, input, output any) (bool, any) {
		return state.(counts).step(input.(operation), output.(result))
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %+v", input, output) },
}

// step reports whether an operation in the state c may have the given result. It also returns the state after the
// operation.
func (c counts) step(op operation, r result) (bool, counts) {
	fits, next := true, c
	for i, cost := range op.cost {
		switch op.kind {
		case "reserve":
			next[i] += cost
			fits = fits && next[i] <= linearMax[i]
		case "return":
			next[i] -= cost
		}
	}
	if op.kind == "return" {
		return r.granted, next
	}
	if !fits {
		next = c
	}
	for i := range next {
		named := op.kind == "peek" || op.cost[i] > 0
		if named && r.remaining[i] != linearMax[i]-next[i] {
			return false, c
		}
	}
	return r.granted == fits, next
}

// record runs clients that use two buckets concurrently, and returns the clients' operations and results. The times of
// operations are values of one counter, so that the order of operations does not depend on a clock.
func (f *fixture) record(round uint64) []porcupine.Operation {
	var clock atomic.Int64
	histories := make([][]porcupine.Operation, linearClients)
	f.concurrently(linearClients, func(i int) {
		client := &linearClient{f: f, name: fmt.Sprint(round, "/", i), bucket: fmt.Sprint("linear", round)}
		random := rand.New(rand.NewPCG(round, uint64(i)))
		for range linearSteps {
			op := client.choose(random)
			called := clock.Add(1)
			got := client.do(op)
			histories[i] = append(histories[i], porcupine.Operation{ClientId: i, Input: op, Output: got, Call: called, Return: clock.Add(1)})
		}
	})
	var all []porcupine.Operation
	for _, h := range histories {
		all = append(all, h...)
	}
	return all
}

// A linearClient performs one operation after another.
type linearClient struct {
	f      *fixture
	name   string
	bucket string
	calls  int
	held   []heldReservation
}

// A heldReservation is a reservation whose units a client may still return.
type heldReservation struct {
	id   string
	cost counts
}

func (c *linearClient) choose(random *rand.Rand) operation {
	switch n := random.IntN(10); {
	case n == 0:
		return operation{kind: "peek"}
	case n < 4 && len(c.held) > 0:
		return operation{kind: "return", cost: c.held[0].cost}
	default:
		costs := []counts{{1, 0}, {0, 1}, {1, 1}, {3, 2}}
		return operation{kind: "reserve", cost: costs[random.IntN(len(costs))]}
	}
}

func (c *linearClient) do(op operation) result {
	switch op.kind {
	case "return":
		settled, err := c.f.store.Settle(c.f.Context(), c.held[0].id, store.NeverSent)
		if err != nil {
			c.f.Errorf("Settle: %v", err)
		}
		c.held = c.held[1:]
		return result{granted: settled}
	case "peek":
		left, err := c.f.store.Peek(c.f.Context(), c.limits(counts{1, 1}))
		if err != nil || len(left) != 2 {
			c.f.Errorf("Peek: %v %v", left, err)
			return result{}
		}
		return result{granted: true, remaining: counts(left)}
	default:
		return c.reserve(op.cost)
	}
}

func (c *linearClient) reserve(cost counts) result {
	c.calls++
	r := store.ReserveRequest{Key: fmt.Sprint(c.name, "/", c.calls), Limits: c.limits(cost), Lifetime: time.Minute}
	answer, err := c.f.store.Reserve(c.f.Context(), r)
	if err != nil {
		c.f.Errorf("Reserve: %v", err)
		return result{}
	}
	if answer.Granted {
		c.held = append(c.held, heldReservation{id: answer.Reservation.ID, cost: cost})
	}
	got := result{granted: answer.Granted}
	var named int
	for i := range cost {
		if cost[i] > 0 {
			got.remaining[i] = answer.Remaining[named]
			named++
		}
	}
	return got
}

// limits returns a limit for each bucket whose cost is positive.
func (c *linearClient) limits(cost counts) []store.Limit {
	var limits []store.Limit
	for i := range cost {
		if cost[i] > 0 {
			limits = append(limits, withCost(cost[i], limitOf(fmt.Sprint(c.bucket, "/", i), linearMax[i], long)))
		}
	}
	return limits
}
